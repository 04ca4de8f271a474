# bench.awk - speed-LEVEL.tsv of bench.sh as a readable table.
#
# A ratio is reached when the lower end of its interval (the value itself, where it has none) is at least the bound less
# 0.02, a share when its median is; sampling when the share is at most the bound.  Fewer than five pairs give no interval
# of 90 %, and no verdict.
BEGIN { FS = "\t" }
NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i; next }

function get(name) { return name in at ? $at[name] : "-" }
function number(x, digits) { return x == "-" ? "-" : sprintf("%." digits "f", x) }
function speed(x) { return x == "-" ? "-" : sprintf(x < 100 ? "%.3g" : "%.0f", x) }
function reaches(low, want) { return want == "-" ? 1 : low != "-" && low + 0 >= want - 0.02 }

# What the bounds ask for, "1.00 / 0.95", and whether they are reached.
function wanted(ratio, share) {
    if (ratio == "-" && share == "-") return "-"
    if (share == "-") return number(ratio, 2)
    return ratio == "-" ? "share " share : number(ratio, 2) " / " share
}

function work_of(  text, of) {
    of = get("model"); sub(/\.gguf$/, "", of)
    text = of ", " get("work")
    if (get("work") == "prefill") text = text " of " get("lap")
    if (get("level") != "-" && get("level") != "best") text = text ", forced " get("level")
    else if (get("cell") ~ /^avx512-/) text = text ", " get("own_kernels") " (the best here)"
    if (get("own_precision") != "-" && get("own_precision") != (get("work") == "perplexity" ? "split" : "int8")) text = text ", " get("own_precision")
    if (get("own_setting") == "huge pages") text = text ", huge pages"
    if (get("depth") + 0 > 0) text = text " at depth " get("depth")
    if (get("sequences") + 0 > 1) text = text ", " get("sequences") " sequences"
    if (get("busy_others") + 0 > 0) text = text ", beside a busy process"
    return text
}

function put(r, c, text) { table[r, c] = text; if (length(text) > width[c]) width[c] = length(text) }

{
    n++
    low = get("ratio_low"); share = get("cell_share"); want = get("want_ratio"); part = get("want_share")
    if (low == "-") low = get("cell_ratio")
    ok = get("work") == "sampling" ? share != "-" && share + 0 <= part + 0 : reaches(low, want) && reaches(share, part)
    few = get("pairs") != "-" && get("pairs") + 0 < 5
    put(n, 1, work_of())
    put(n, 2, speed(get("own_tok_s"))); put(n, 3, speed(get("stock_tok_s")))
    put(n, 4, number(get("cell_ratio"), 2))
    put(n, 5, get("ratio_low") == "-" || few ? "-" : number(get("ratio_low"), 2) " to " number(get("ratio_high"), 2))
    put(n, 6, number(share, get("work") == "sampling" ? 4 : 2))
    put(n, 7, number(get("wall_gb_s"), 1)); put(n, 8, get("wall_gb_s") == "-" ? "-" : number(get("lap_share"), 2))
    put(n, 9, get("pairs"))
    put(n, 10, wanted(want, part)); put(n, 11, (want == "-" && part == "-") || few ? "-" : ok ? "yes" : "no")
    if (get("stock_version") != "-") { version = get("stock_version"); sub(/ .*/, "", version) }
    if (get("level") == "best") level = get("own_kernels")
    if (get("threads") != "-") threads = get("threads")
    seen("machines", get("machine")); seen("commits", get("commit"))
    if (get("level") == "best") seen("libraries", get("stock_version"))
    if (first == "" || get("date") < first) first = get("date")
    if (get("date") > last) last = get("date")
    if (get("work") == "decode" && get("own_load_ms") != "-" && get("busy_others") == "0" && get("level") == "best" && get("sequences") == "1")
        memory[++n_memory] = sprintf("| %s | %s | %s (%s) | %s (%s) | %s | %s | %s |", work_of(), get("file_mb"), get("own_rss_after_mb"), get("own_huge_mb"), get("stock_rss_after_mb"), get("stock_huge_mb"), get("own_load_ms"), get("stock_load_ms"), get("stock_setting"))
}

# all[WHAT]: the different texts of the rows, in their order
function seen(what, text) { if (text != "-" && !known[what, text]++) all[what] = all[what] (all[what] == "" ? "" : "; ") text }
function rule(c,  i, line) { line = ""; for (i = 0; i < width[c] + 1; i++) line = line "-"; return c > 1 && c < LAST ? line ":" : ":" line }

function print_row(r,  c, line) {
    line = "|"
    for (c = 1; c <= LAST; c++) line = line sprintf(c == 1 || c == LAST ? " %-" width[c] "s |" : " %" width[c] "s |", table[r, c])
    print line
}

END {
    LAST = split("work|this, tok/s|upstream|ratio|90 % interval|share|wall, GB/s|lap by lap|pairs|at least|reached", head, "|")
    for (c = 1; c <= LAST; c++) put(0, c, head[c])
    printf "# Speed beside upstream llama.cpp\n\n"
    printf "`make bench`: %s logical CPUs; level %s, %s threads; commit %s; %s to %s.\n", all["machines"], level, threads, all["commits"], first, last
    printf "Upstream %s (%s) at the best of its four settings, which for 7b is found on 4 of its 28 layers; laps in turn.\n", version, all["libraries"]
    printf "This engine computes with the weights in the mapped file; *huge pages*: with copies (`--huge-pages`), and\n"
    printf "upstream's memory asks for huge pages, too (`GLIBC_TUNABLES=glibc.malloc.hugetlb=1`).\n\n"
    printf "Models have random weights. 7b is the shape of Qwen2.5-7B, 7b4 and 7b2 its first 4 and 2 layers with its output matrix. Speeds and\n"
    printf "ratios are medians of the pairs; *share* is, of decoding a 7b, the bytes of weights a second over the best read of memory within a minute\n"
    printf "(*wall*: `deadwood limits --what wall` before, and what `versus` reads before and after); beside a busy process, of the own idle speed; of a gate, ideal time / time; of\n"
    printf "collect, the speed with statistics over the speed without; of sampling, the slowest of top-k, top-p, min-p and all three\n"
    printf "at 152,064 tokens over a step of the 7b (at most). *Lap by lap*: each lap's bytes a second over what the same threads read of\n"
    printf "the same weights right before or after it, whichever is more. *At least* is a bound of the ratio, of the share, or of both. *Reached*: the\n"
    printf "lower end of the interval, or the median of a share, is at least the bound less 0.02; fewer than five pairs have neither\n"
    printf "interval nor verdict. A row with a bound of its share of the wall in which memory moved (a reading below 0.85 of the best, the row's own\n"
    printf "reading among them) was measured again, up to three times, with more than five pairs twice; the last one counts (column `tries` of the .tsv). *The best here*: the row of the best level once more, beside the bound for that level.\n\n"
    print_row(0)
    line = "|"; for (c = 1; c <= LAST; c++) line = line rule(c) "|"; print line
    for (r = 1; r <= n; r++) print_row(r)
    if (n_memory) {
        printf "\n| work | file, MB | resident after (huge pages), MB | upstream | ready after, ms | upstream | upstream's setting |\n|:---|---:|---:|---:|---:|---:|:---|\n"
        for (i = 1; i <= n_memory; i++) print memory[i]
    }
}
