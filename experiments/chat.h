/* chat.h - the common chat formats, recognised by what a file's template contains.
 *
 * The template itself is a Jinja program from an untrusted file: it is searched for marks and never executed, so its
 * finer behaviour (Qwen2.5's default system message, Qwen3's thinking) is not reproduced.  Marks and formats:
 * llama.cpp src/llama-chat.cpp. */
#ifndef CHAT_H
#define CHAT_H

#include "engine.h"

typedef struct chat_family {
    const char *name;
    const char *marks[3]; // all must occur in the template
    const char *absent;   // must not occur
    /* NULL: the system text goes in front of the first user text, and a blank line. */
    const char *before_system, *after_system;
    const char *before_user, *after_user; // after_user ends with what starts the answer
    const char *after_answer;
} chat_family;

const chat_family *chat_recognise(dw_str chat_template); // NULL: unknown

/* Text of a user's turn up to where the answer begins; system (may be NULL) only on the first turn.  free(). */
char *chat_turn(const chat_family *f, const char *system, const char *user, bool first, dw_err *err);

#endif
