# deadwood - `make help` lists the targets.

CFLAGS   ?= -O3 -g
SAN      ?=
comma    := ,
B        := build$(if $(SAN),-$(subst $(comma),-,$(SAN)))$(if $(filter clang,$(CC)),-clang)

PKGS     := libpcre2-8 jansson libzstd
STD      := -std=gnu11 -fno-fast-math -ffp-contract=off
WARN     := -Wall -Wextra -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wvla -Wno-missing-field-initializers -Werror
SANFLAGS := $(if $(SAN),-fsanitize=$(SAN) -fno-omit-frame-pointer -fno-sanitize-recover=all)
CPP_ALL  := -Iengine -I. -D_GNU_SOURCE $(shell pkg-config --cflags $(PKGS))
LIBS     := $(shell pkg-config --libs $(PKGS)) -lm -lpthread

ENGINE   := $(sort $(wildcard engine/*/*.c))
ROOMS    := prune predict quant experiments
# A room's file with a main() is a program, the others belong to every program of that room.
MAINS    := $(sort $(shell grep -l '^int main' $(wildcard $(ROOMS:=/*.c)) /dev/null))
PROGRAMS := $(patsubst %,$B/deadwood-%,$(basename $(notdir $(MAINS))))
TESTS    := $(patsubst tests/%.c,$B/%,$(sort $(wildcard tests/test_*.c)))
TESTLIB  := $(patsubst %.c,$B/%.o,$(filter-out tests/test_%.c tests/fuzz_%.c tests/preload_%.c,$(sort $(wildcard tests/*.c))))
objects   = $(patsubst %.c,$B/%.o,$(1))
roomlib   = $(call objects,$(filter-out $(MAINS),$(wildcard $(1)/*.c)))

.PHONY: all test fuzz clean help
.SECONDARY:
.SECONDEXPANSION:

all: $(PROGRAMS)  ## build everything into build/

$B/libengine.a: $(call objects,$(ENGINE))
	@rm -f $@
	ar rcs $@ $^

$B/%.o: %.c
	@mkdir -p $(@D)
	$(CC) $(STD) $(WARN) $(CFLAGS) $(SANFLAGS) $(CPP_ALL) -MMD -MP -c $< -o $@

define program
$B/deadwood-$(basename $(notdir $(1))): $(call objects,$(1)) $(call roomlib,$(patsubst %/,%,$(dir $(1)))) $B/libengine.a
	$$(CC) $$(SANFLAGS) $$(LDFLAGS) $$^ $$(LIBS) -o $$@
endef
$(foreach m,$(MAINS),$(eval $(call program,$(m))))

$B/test_%: $B/tests/test_%.o $(TESTLIB) $$(foreach r,$(ROOMS),$$(call roomlib,$$r)) $B/libengine.a
	$(CC) $(SANFLAGS) $(LDFLAGS) $^ $(LIBS) -o $@

test: all $(TESTS)  ## prove it
	@for t in $(TESTS); do $$t || exit 1; done

# Every tests/fuzz_NAME.c is a libFuzzer target.  What it finds new stays in build-fuzz/corpus/NAME, so that the
# next run goes on from there; an input that fails is left as build-fuzz/NAME-crash-... and belongs into tests/broken.
FUZZERS    := $(patsubst tests/fuzz_%.c,%,$(sort $(wildcard tests/fuzz_*.c)))
FUZZ_SEEDS := $(wildcard tests/broken tests/seeds)
FUZZ_FLAGS := -max_len=4096 -timeout=5 -rss_limit_mb=1024 -malloc_limit_mb=128 -print_final_stats=1
SECONDS    ?= 30

$B/fuzz_%: $B/tests/fuzz_%.o $(TESTLIB) $$(foreach r,$(ROOMS),$$(call roomlib,$$r)) $B/libengine.a
	$(CC) $(SANFLAGS) -fsanitize=fuzzer $(LDFLAGS) $^ $(LIBS) -o $@

fuzz:  ## feed the readers random bytes, SECONDS=30 each
	@$(MAKE) --no-print-directory B=build-fuzz CC=clang CFLAGS='-O1 -g' SAN=fuzzer-no-link,address,undefined \
	    $(FUZZERS:%=build-fuzz/fuzz_%)
	@for t in $(FUZZERS); do \
	    mkdir -p build-fuzz/corpus/$$t; \
	    build-fuzz/fuzz_$$t $(FUZZ_FLAGS) -max_total_time=$(SECONDS) -artifact_prefix=build-fuzz/$$t- \
	        build-fuzz/corpus/$$t $(FUZZ_SEEDS) 2>build-fuzz/$$t.log || { tail -40 build-fuzz/$$t.log; exit 1; }; \
	    awk '/number_of_executed_units/ {n = $$2} /peak_rss_mb/ {mb = $$2} \
	        END {printf "fuzz_%-20s%12d executions, %d MiB\n", "'$$t'", n, mb}' build-fuzz/$$t.log; \
	done

clean:  ## remove what was built
	rm -rf build build-*

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## */  \1\t/p' Makefile

-include $(shell find $B -name '*.d' 2>/dev/null)
