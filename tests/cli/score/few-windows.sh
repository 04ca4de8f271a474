# The short table says why it has no errors.
deadwood synth --shape tiny-llama --type F32 -o m.gguf -q
head -c 4000 "$ROOT"/README.md >text.txt
deadwood score -m m.gguf -f text.txt -c 64 --windows 4 --no-speed -t 1 2>err
grep -q '± is a standard error over windows (fewer than 5 windows: none)' err
deadwood score -m m.gguf -f text.txt -c 64 --windows 5 --no-speed -t 1 2>err
if grep -q ± err; then exit 1; fi
