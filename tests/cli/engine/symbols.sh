# Every symbol that a library defines carries its room's prefix, and libengine.a needs nothing but libc, libm and libpthread.
[ -z "${SAN:-}" ] || { echo "a sanitizer adds symbols of its own" >&2; exit 77; }
defined() { nm --defined-only --extern-only "$BUILD/lib$1.a" | awk 'NF == 3 { print $3 }' | sort -u; }
check() { # library, prefixes
    defined "$1" | grep -vE "^($2)" | sed "s/^/lib$1.a defines /" >>wrong || true
}
: >wrong
check engine 'dw_'
check text 'dw_'
check kit 'kit_|(opt|tool|tsv|lineage|calib|progress|traces|signals|paths)(_|$)|die(_|$)|say(_|$)|warn$|show_(bytes|duration|text|lines)$'
check measure 'measure_'
# What libengine.a needs and does not define: of these a link with libc, libm and libpthread leaves nothing undefined.
nm --undefined-only "$BUILD/libengine.a" | awk 'NF == 2 { print $2 }' | sort -u >needed
defined engine | comm -23 needed - | grep -vE '^(_GLOBAL_OFFSET_TABLE_|__cpu_(model|indicator_init))$' >outside
awk '{ printf "extern char %s[] __asm__(\"%s\"); ", "s" NR, $1; list = list "s" NR ", " } END { print "char *all[] = {" list "0}; int main(void) { return !all[0]; }" }' outside >all.c
cc -w -fno-builtin all.c -lm -lpthread -o all 2>unresolved || cat unresolved >>wrong
cat wrong
test ! -s wrong
