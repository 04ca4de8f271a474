# Commands are proposed from a file's lineage only without options that write further files.  Every such option of a tool
# that writes models is in the list of engine/kit/lineage.c.
cd "$ROOT"
list=$(sed -n '/ caches\[\] = {/,/};/p; /not_proposed\[\] = {/,/};/p' engine/kit/lineage.c)
makers=$(sed -n 's/.*makers\[\] = {\(.*\)};/\1/p' engine/kit/lineage.c | tr -d '",')
test -n "$makers"
for tool in $makers; do
    file=$(ls */$tool.c)
    rows=$(tr '\n' ' ' <$file | sed 's/{"/\n{"/g') # a row a line
    writers=$(printf '%s\n' "$rows" | sed -n 's/^{"\([a-z-]*\)",.*OPT_PATH.*OPT_\(NO_BYTE\|OUTPUT\).*/\1/p
                                    s/^{"\([a-z-]*\)",.*\.derived = .*/\1/p')
    test -n "$writers"
    for option in $writers; do
        case $list in
        *"\"$option\""*) ;;
        *) echo "$file: --$option"; exit 1 ;;
        esac
    done
done
# A tool that stamps a lineage is one of them.
for file in $(grep -l 'lineage_new(' prune/*.c predict/*.c quant/*.c experiments/*.c experiments/*/*.c); do
    case " $makers " in
    *" $(basename $file .c) "*) ;;
    *) echo "$file writes models"; exit 1 ;;
    esac
done
