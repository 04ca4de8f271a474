# One bit of the stored base is written wrong: score finds it before the rename, and the old file stays.
deadwood-synth --shape tiny-llama --type Q8_0 -o m.gguf -t 1 -q
head -c 4000 "$ROOT"/README.md >text.txt
score=(deadwood-score -m m.gguf -f text.txt -c 64 --windows 2 --no-speed -t 1 -q --store base.dwp)
bash "$ROOT/tests/flipped.sh" base.dwp 1 "${score[@]}"
"${score[@]}"
deadwood-score -m m.gguf -f text.txt -c 64 --windows 2 --no-speed -t 1 -q --base base.dwp >shown
