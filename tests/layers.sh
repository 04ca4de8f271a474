#!/bin/sh
# layers.sh - checks the direction of includes, and that the libraries neither print nor exit.
#
#   base <- qtypes <- formats <- backends <- model <- text <- kit <- measure <- rooms <- tests
#
# A file may include headers of its own folder and of those left of it.  text sees base, qtypes and formats only.  engine.h gathers
# base, qtypes and formats and may be included from backends rightwards, but not by text.  Rooms (prune, predict, quant,
# experiments) do not see each other.  Files .c, .h and .inc are checked.
cd "$(dirname "$0")/.." || exit 1

grep -Hn '^ *# *include *"' $(find engine prune predict quant experiments -name '*.[ch]' -o -name '*.inc' 2>/dev/null) | awk '
BEGIN {
    split("base qtypes formats engine.h backends model text kit measure", order, " ")
    for (i in order) rank[order[i]] = i + 0
}
function layer(path,  part, n) { # engine/base/err.c -> base, engine/engine.h -> engine.h, prune/cut.c -> prune
    n = split(path, part, "/")
    return part[1] == "engine" ? part[2] : part[1]
}
function exists(path,  line, rc) {
    if (!(path in known)) {
        rc = (getline line < path)
        close(path)
        known[path] = rc >= 0
    }
    return known[path]
}
{
    split($0, field, ":")
    file = field[1]
    split($0, quoted, "\"")
    name = quoted[2]
    folder = file
    sub("/[^/]*$", "/", folder)
    path = exists(folder name) ? folder name : exists("engine/" name) ? "engine/" name : name
    from = layer(file)
    to = layer(path)
    if (!exists(path)) bad = "there is no such file"
    else if (path ~ /\.c$/) bad = "a .c file is not included"
    else if (from == to) bad = ""
    else if (!(to in rank)) bad = from " may not see " to
    else if (from == "text" && to !~ /^(base|qtypes|formats)$/) bad = "text may not see " to
    else if (!(from in rank)) bad = ""
    else if (rank[to] > rank[from]) bad = from " may not see " to
    else bad = ""
    n++
    if (bad != "") { printf "%s:%s: includes \"%s\": %s\n", file, field[2], name, bad; n_bad++ }
}
END {
    if (n_bad) exit 1
    if (!n) { print "layers: no includes found"; exit 1 }
}' || exit 1

# Only these files of the kit print or end a process; all other libraries' files never do.
if grep -nE '(^|[^_[:alnum:]])(printf|puts|putchar|perror|exit|abort|_exit) *\(|(stdout|stderr)[^_[:alnum:]]' \
    $(find engine -name '*.[ch]' $(for f in talk.c options.c options_help.c progress.c paths.c signals.c h5_child.c kit_own.h; do echo "! -path engine/kit/$f"; done) -o -name '*.inc') | grep -vE ':[0-9]+: *(\*|/\*|//)|format\(printf|// .*(exit|print)'; then
    echo 'layers: the engine may not print or exit'
    exit 1
fi

# Values are stored through qtypes/encoding.h, which refuses what a type cannot hold.
if grep -nE '(type|stored|[^_[:alnum:]]t)->encode\(' $(find engine prune predict quant experiments -name '*.c' ! -path 'engine/qtypes/*'); then
    echo 'layers: encode rows by dw_encode_row of qtypes/encoding.h'
    exit 1
fi
