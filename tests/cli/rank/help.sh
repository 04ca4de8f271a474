# The help lists every metric, with a space after its name, however long the name is.
deadwood-rank --help >help.txt
for metric in activation random wanda energy obs; do grep -q "^  $metric: [^ ]" help.txt; done
