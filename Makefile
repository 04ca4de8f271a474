# deadwood - `make help` lists the targets.

CFLAGS   ?= $(if $(SAN),-O2 -g1,-O3 -g)
SAN      ?=
DEBUG    ?=
PREFIX   ?= /usr/local
ONLY     ?=
comma    := ,
B        := build$(if $(SAN),-$(subst $(comma),-,$(SAN)))$(if $(DEBUG),-debug)$(if $(filter clang,$(CC)),-clang)

PKGS     := libpcre2-8 jansson libzstd hdf5 openblas lapacke
STD      := -std=gnu11 -fno-fast-math -ffp-contract=off -fno-math-errno
WARN     := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wno-missing-field-initializers -Werror
# Warnings that hang on what the optimizer sees are for the ordinary build.
WARN     += $(if $(SAN),$(if $(filter clang,$(CC)),,-Wno-format-truncation -Wno-maybe-uninitialized -Wno-stringop-overflow))
# Checks at the boundaries of kernels and steps (dw_assert): in DEBUG=1 and in every sanitizer build.
CHECKS   := $(if $(SAN)$(DEBUG),-DDW_DEBUG)
SANFLAGS := $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=all)
CPP_ALL  := -Iengine -I. -D_GNU_SOURCE $(shell pkg-config --cflags $(PKGS))
# A program loads only the libraries that it uses.  Without a build id, which hashes the commit as well, equal code
# gives equal programs (kit/hash_cache.h, kit_sha256_program).
LIBS     := $(if $(filter Linux,$(shell uname)),-Wl$(comma)--as-needed -Wl$(comma)--build-id=none) $(shell pkg-config --libs $(PKGS)) -lm -lpthread
COMPILE   = $(CC) $(STD) $(WARN) $(CFLAGS) $(SANFLAGS) $(CHECKS) $(CPP_ALL)

# Four libraries, each of which may see those before it: the engine itself, which needs nothing but libc, libm and
# libpthread; text to ids and back; what tools share; what score measures with.
LIBRARIES    := engine text kit measure
engine_DIRS  := engine/base engine/qtypes engine/formats engine/backends engine/model
text_DIRS    := engine/text
kit_DIRS     := engine/kit
measure_DIRS := engine/measure
ROOMS    := prune predict quant experiments
in_room   = $(sort $(wildcard $(1)/*.c $(1)/*/*.c))
# A room's file with a main() is a program, the others are the room's library, of which a program takes what it uses.
MAINS    := $(sort $(shell grep -l '^int main' $(foreach r,$(ROOMS),$(call in_room,$r)) /dev/null))
ARCHIVES := $B/libmeasure.a $B/libkit.a $B/libtext.a $B/libengine.a
objects   = $(patsubst %.c,$B/%.o,$(1))
roomlib   = $(addprefix $B/,$(1).a)
program   = $(patsubst deadwood-deadwood,deadwood,deadwood-$(basename $(notdir $(1))))
PROGRAMS := $(foreach m,$(MAINS),$B/$(call program,$m))
TESTS    := $(patsubst tests/%.c,$B/%,$(sort $(wildcard tests/test_*.c)))
TESTLIB  := $(patsubst %.c,$B/%.o,$(filter-out tests/test_%.c tests/fuzz_%.c tests/bench_%.c tests/preload_%.c tests/run.c,$(sort $(wildcard tests/*.c))))
HEADERS  := $(sort $(wildcard engine/*.h engine/*/*.h $(ROOMS:=/*.h) $(ROOMS:=/*/*.h) tests/*.h))

.PHONY: FORCE all demo exact results results-7b bench bench-quick test test-slow tests layers headers bench-dot bench-sparse fuzz man install clean help
.SECONDARY:
.SECONDEXPANSION:

all: $(PROGRAMS)  ## build everything into build/

define library_rule
$B/lib$(1).a: $(call objects,$(sort $(wildcard $($(1)_DIRS:=/*.c))))
	@rm -f $$@
	ar rcs $$@ $$^
endef
$(foreach l,$(LIBRARIES),$(eval $(call library_rule,$(l))))

define room_rule
$B/$(1).a: $(call objects,$(filter-out $(MAINS),$(call in_room,$(1))))
	@rm -f $$@
	ar rcs $$@ $$^
endef
$(foreach r,$(ROOMS),$(eval $(call room_rule,$(r))))

# Beside the address sanitizer, UBSan's checks of each pointer would double the kernels' time.
$B/engine/backends/kernels_%.o: SANFLAGS += $(if $(findstring address$(comma)undefined,$(SAN)),-fno-sanitize=null$(comma)alignment$(comma)object-size$(comma)pointer-overflow)

$B/%.o: %.c
	@mkdir -p $(@D)
	$(COMPILE) -MMD -MP -c $< -o $@

# The commit stands in every row of results: one object is made again when it changes.
COMMIT := $(shell git describe --always --dirty --abbrev=12 --exclude='*' 2>/dev/null || echo -)

$B/commit: FORCE
	@mkdir -p $(@D)
	@echo '$(COMMIT)' | cmp -s - $@ || echo '$(COMMIT)' > $@

$B/engine/kit/commit.o: CPP_ALL += -DDEADWOOD_COMMIT='"$(COMMIT)"'
$B/engine/kit/commit.o: $B/commit

define program_rule
$B/$(call program,$(1)): $(call objects,$(1)) $(call roomlib,$(firstword $(subst /, ,$(1)))) $(ARCHIVES)
	$$(CC) $$(SANFLAGS) $$(LDFLAGS) $$^ $$(LIBS) -o $$@
endef
$(foreach m,$(MAINS),$(eval $(call program_rule,$(m))))

# ---- tests: build/run runs test programs and tests/cli, and counts (tests/run.c says how)

$B/test_%: $B/tests/test_%.o $(TESTLIB) $$(foreach r,$(ROOMS),$$(call roomlib,$$r)) $(ARCHIVES)
	$(CC) $(SANFLAGS) $(LDFLAGS) $^ $(LIBS) -o $@

$B/run: $B/tests/run.o $B/tests/test.o
	$(CC) $(SANFLAGS) $(LDFLAGS) $^ -o $@

$B/faults.so: tests/preload_faults.c
	@mkdir -p $(@D)
	$(CC) $(STD) $(WARN) -O2 -g -D_GNU_SOURCE -shared -fPIC $< -ldl -o $@

$B/bench_collect $B/bench_obs: $B/prune.a
$B/bench_dot: $B/experiments.a
$B/bench_backward: $B/tests/bench_own_gemm.o $B/tests/bench_peer_gemm.o
# A peer, where it is installed (Debian: libdnnl-dev).
ifneq ($(wildcard /usr/include/dnnl.h),)
$B/tests/bench_peer_gemm.o: CPP_ALL += -DHAS_DNNL
$B/bench_backward: LIBS += -ldnnl -lgomp
endif
$B/bench_%: $B/tests/bench_%.o $(ARCHIVES)
	$(CC) $(SANFLAGS) $(LDFLAGS) $(filter-out $(ARCHIVES),$^) $(ARCHIVES) $(LIBS) -o $@

bench-dot: $B/bench_dot  ## dot rows beside the memory's speed: build/bench_dot [TYPE or LEVEL]...
	$<

bench-sparse: $B/bench_sparse  ## gated FFNs beside the dense one and the ideal, as a table for gnuplot: build/bench_sparse -h
	$<

tests: all $(TESTS) $B/run $B/faults.so

test: tests headers  ## prove it; ONLY=words runs the tests whose names contain them
	@SAN=$(SAN) $B/run $B "$(ONLY)" $(TESTS)

test-slow: export DW_SLOW = 1
test-slow: test  ## prove it at length

layers: headers  ## check the direction of includes
	@sh tests/layers.sh

# Every header compiles alone.
headers: $(HEADERS:%=$B/%.alone)

$B/%.h.alone: %.h
	@mkdir -p $(@D)
	@$(COMPILE) -Wno-unused -Wno-pragma-once-outside-header -MMD -MP -MF $@.d -MT $@ -fsyntax-only -x c $<
	@touch $@

demo:  ## make the five attempts on the embedded model, or MODEL=FOLDER TEXTS=DIR, and print a table
	@sh experiments/demo.sh

exact: all  ## compute results/exact.tsv again: quality by definition, equal on every machine
	PATH="$(CURDIR)/$B:$$PATH" sh experiments/exact.sh results/exact.tsv

results: all  ## make the tables and plots of the embedded model in results/ again, of a clean tree (else DIRTY=1); GRIDS='gate requant': of these grids
	sh experiments/results.sh

results-7b: all $B/bench_sparse  ## speed and size on the shape of a 7B model: results/7b.md, sparse-7b.svg
	sh experiments/results_7b.sh

BENCHES := $B/bench_sparse $B/bench_sampler $B/bench_collect

bench: all $(BENCHES)  ## all speeds beside upstream llama.cpp, in about half an hour on two cores: results/speed-LEVEL.md, .tsv; needs DW_STOCK=FOLDER
	sh experiments/bench.sh

bench-quick: all $(BENCHES)  ## the same for the small models in three minutes, to the terminal only; needs DW_STOCK=FOLDER
	sh experiments/bench.sh quick

# ---- fuzzing

# Every tests/fuzz_NAME.c is a libFuzzer target.  What it finds new stays in build-fuzz/corpus/NAME, so that the
# next run goes on from there; an input that fails is left as build-fuzz/NAME-crash-... and belongs into tests/broken.
FUZZERS    := $(patsubst tests/fuzz_%.c,%,$(sort $(wildcard tests/fuzz_*.c)))
FUZZ_SEEDS := $(wildcard tests/broken tests/seeds)
FUZZ_FLAGS := -max_len=4096 -timeout=5 -rss_limit_mb=1024 -malloc_limit_mb=128 -print_final_stats=1
SECONDS    ?= 30

$B/fuzz_%: $B/tests/fuzz_%.o $(TESTLIB) $$(foreach r,$(ROOMS),$$(call roomlib,$$r)) $(ARCHIVES)
	$(CC) $(SANFLAGS) -fsanitize=fuzzer $(LDFLAGS) $^ $(LIBS) -o $@

fuzz:  ## feed the readers random bytes, SECONDS=30 each; -j2: two at a time; TABLE=FILE writes what was run as a table
	@$(MAKE) --no-print-directory B=build-fuzz CC=clang CFLAGS='-O1 -g' SAN=fuzzer-no-link,address,undefined \
	    $(FUZZERS:%=build-fuzz/fuzz_%)
	@$(MAKE) --no-print-directory $(FUZZERS:%=run-fuzz-%)
	@if [ -n "$(TABLE)" ]; then { printf '# make fuzz SECONDS=%s TABLE=%s, commit %s; address and undefined sanitizers\n' \
	    '$(SECONDS)' '$(TABLE)' '$(COMMIT)'; printf 'target\tseconds\texecutions\tnew_inputs\tpeak_rss_mib\tfindings\n'; \
	    cat $(FUZZERS:%=build-fuzz/%.row); } > '$(TABLE)'.part && mv '$(TABLE)'.part '$(TABLE)'; fi

run-fuzz-%:
	@mkdir -p build-fuzz/corpus/$*
	@build-fuzz/fuzz_$* $(FUZZ_FLAGS) -max_total_time=$(SECONDS) -artifact_prefix=build-fuzz/$*- build-fuzz/corpus/$* \
	    $(FUZZ_SEEDS) 2>build-fuzz/$*.log || { tail -40 build-fuzz/$*.log; exit 1; }
	@awk '/number_of_executed_units/ {n = $$2} /peak_rss_mb/ {mb = $$2} /new_units_added/ {new = $$2} \
	    END {printf "fuzz_%-20s%12d executions, %d MiB\n", "$*", n, mb; \
	         printf "%s\t%d\t%d\t%d\t%d\t0\n", "$*", $(SECONDS), n, new, mb > "build-fuzz/$*.row"}' build-fuzz/$*.log

# ---- what is installed

MANUALS   = $(PROGRAMS:%=%.1)

man: $$(MANUALS)  ## write the man pages into build/

$B/%.1: $B/%
	@$< --help-man > $@.part && mv $@.part $@

PUBLIC   := engine/engine.h engine/base/base.h engine/qtypes/qtypes.h engine/formats/formats.h engine/text/tokenizers.h

install: all man  ## PREFIX=/usr/local: programs, man pages, libraries and headers
	install -d "$(DESTDIR)$(PREFIX)/bin" "$(DESTDIR)$(PREFIX)/lib/pkgconfig" "$(DESTDIR)$(PREFIX)/share/man/man1"
	install $(PROGRAMS) "$(DESTDIR)$(PREFIX)/bin"
	install -m 644 $(MANUALS) "$(DESTDIR)$(PREFIX)/share/man/man1"
	install -m 644 $B/libengine.a $B/libtext.a "$(DESTDIR)$(PREFIX)/lib"
	for h in $(PUBLIC); do install -D -m 644 $$h "$(DESTDIR)$(PREFIX)/include/deadwood/$${h#engine/}"; done
	printf '%s\n' 'Name: deadwood' 'Description: run language models and look inside' 'Version: 0.1' \
	  'Cflags: -I"$(PREFIX)/include/deadwood"' 'Libs: -L"$(PREFIX)/lib" -lengine -lm -lpthread' \
	  > "$(DESTDIR)$(PREFIX)/lib/pkgconfig/deadwood.pc"
	printf '%s\n' 'Name: deadwood-text' 'Description: text to token ids and back' 'Version: 0.1' 'Requires: deadwood' \
	  'Requires.private: libpcre2-8 jansson' 'Libs: -L"$(PREFIX)/lib" -ltext -lpcre2-8 -ljansson' \
	  > "$(DESTDIR)$(PREFIX)/lib/pkgconfig/deadwood-text.pc"

clean:  ## remove what was built
	rm -rf build build-*

help:  ## this list
	@sed -n 's/^\([a-z0-9-]*\):.*## */  \1\t/p' Makefile

-include $(shell find $B -name '*.d' 2>/dev/null)
