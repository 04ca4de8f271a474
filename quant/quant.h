/* quant.h - requantization: which tensor gets which number format, and how to round well.
 *
 *   requant   model [, statistics or importance file] -> model
 *
 * What a block format is (layout, decoder, encoder) stands in engine/qtypes; here it is chosen.  A source that is
 * already quantized is refused unless the loss on top of a loss is asked for. */
#ifndef QUANT_H
#define QUANT_H

#include "engine.h"

#endif
