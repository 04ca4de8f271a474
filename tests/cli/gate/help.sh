# Whether skipping is faster is measured only where down and its copy hold the same numbers; both helps say so.
deadwood gate --help | tr -s ' \n' '  ' >gate.txt
grep -q 'Where down has 16 or 32 bits, the engine measures it where the model runs' gate.txt
grep -q 'Where down has blocks, closed neurons are always skipped' gate.txt
deadwood score --help | tr -s ' \n' '  ' >score.txt
grep -q 'where down has 16 or 32 bits, only in the layers in which that is faster on this machine' score.txt
