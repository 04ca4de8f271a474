/* child.h - a child process that obeys orders: what is measured stands alone in it.
 *
 * Orders and replies are structures of the two sides' own, sent whole over a socket.  While a child waits for an order
 * it sleeps: it holds memory, but no core. */
#ifndef EXP_CHILD_H
#define EXP_CHILD_H

#include "base/base.h"

#include <sys/types.h>

typedef struct exp_child {
    pid_t pid; // 0: none
    int line;  // the socket
} exp_child;

/* The child calls live(ctx, its end of the line) and ends when that returns, or with the parent.  It has of the parent
 * what stood in memory, but no threads. */
int exp_child_start(exp_child *c, void (*live)(const void *ctx, int line), const void *ctx, dw_err *err);
void exp_child_stop(exp_child *c); // at once

/* All bytes, or false: the other side has ended. */
bool exp_send(int line, const void *data, size_t size);
bool exp_receive(int line, void *data, size_t size);

#endif
