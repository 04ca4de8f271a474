/* peaks.h - loops that do nothing but arithmetic, as fast as the unit goes. */
#ifndef EXP_PEAKS_H
#define EXP_PEAKS_H

#include <stdbool.h>
#include <stddef.h>

typedef struct exp_peak {
    const char *name, *unit;   // unit of rate: "Top/s" (integer) or "Tflop/s", a multiply-add counted as two
    double ops;                // of one step
    bool (*usable)(void);      // on this machine
    void (*run)(size_t n_steps);
} exp_peak;

extern const exp_peak exp_peaks[]; // ends with name NULL; empty on other machines than x86-64

#endif
