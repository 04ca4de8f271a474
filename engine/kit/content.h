/* content.h - what a file holds, told by its first bytes. */
#ifndef KIT_CONTENT_H
#define KIT_CONTENT_H

typedef enum kit_content { // bits: an output may have several forms
    KIT_NOTHING = 0,       // the file is empty, absent or not a regular file
    KIT_GGUF = 1,          // a model
    KIT_STATS = 2,
    KIT_GRAM = 4,
    KIT_TRACES = 8,
    KIT_PREDICTIONS = 16,
    KIT_PLAN = 32,
    KIT_ROWS = 64,
    KIT_SCORES = 128,
    KIT_PICTURE = 256, // SVG, PDF, PNG
    KIT_TEXT = 512,    // none of the above, and no byte 0 near its beginning
    KIT_OTHER = 1024,
    KIT_IMATRIX = 2048, // llama.cpp's importances, in either form
} kit_content;

kit_content kit_content_of(const char *path);
const char *kit_content_name(unsigned contents); // of the lowest bit, for messages: "a plan"

#endif
