# Includes point in one direction, and the engine neither prints nor exits.
sh "$ROOT/tests/layers.sh"
