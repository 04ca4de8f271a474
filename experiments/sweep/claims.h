/* claims.h - which process works on which job of a folder, so that several sweeps share it, on one machine or several.
 *
 *   FOLDER/claims/JOB                    a process works on this job:   "deadwood claim 2\nPROCESS\n"
 *   FOLDER/claims/HOST-PID-RANDOM.sweep  a process shares the folder:   the same, and "grid SHA256\n"
 *   PROCESS  "HOST BOOT NAMESPACE PID START RANDOM": host, boot id, pid namespace, process id, its start, 64 random bits,
 *            so that two processes never have one name: containers may share host name and process ids
 *
 * A claim must be a new file (dw_write_new), so one process gets it.  When that has seen that the job must be done, it
 * adds the line "began", and it removes the claim when the job's outputs are complete.  So an output without a claim is
 * finished, and one with the claim of a dead process that began is not trusted.  A claim of this host, boot and namespace
 * is dead when there is no process of that id and start time.  Any other claim is dead when nobody has touched it for
 * CLAIM_LOST seconds of the file system's clock; its owner touches it every CLAIM_BEAT seconds.  A process that slept
 * longer may have lost its claim to another one: it asks claims_holds before it takes an output.
 *
 * A job that failed keeps its claim, with the line "failed REASON", until its process ends.  Others that share the
 * folder then do not repeat it, and a later sweep does. */
#ifndef EXP_CLAIMS_H
#define EXP_CLAIMS_H

#include "base/base.h"

enum { CLAIM_BEAT = 30, CLAIM_LOST = 600 };

typedef struct claims claims;

/* Makes the folder of claims.  Fails when another live process works on the folder with another grid.  *n_others: how
 * many share it. */
claims *claims_open(const char *folder, const char *grid_sha256, int *n_others, dw_err *err);
void claims_close(claims *c); // gives up all that this process holds, and removes claims of dead ones that did not begin

typedef enum claim_state {
    CLAIM_FREE,  // nobody else has it, or its process is gone before it began
    CLAIM_OTHER, // a live process has it
    CLAIM_DEAD,  // its process began and is gone
    CLAIM_FAILED // a live process says that the job failed
} claim_state;

/* Who has a job.  *reason: of CLAIM_FAILED, free(). */
claim_state claims_look(claims *c, const char *name, char **reason);

typedef enum claim_taken { CLAIM_NOT_MINE, CLAIM_NEW, CLAIM_INHERITED } claim_taken; // inherited: CLAIM_DEAD before

int claims_take(claims *c, const char *name, claim_taken *taken, dw_err *err);
int claims_begin(claims *c, const char *name, dw_err *err); // before the programs of a job that this process holds
void claims_release(claims *c, const char *name);
bool claims_holds(const claims *c, const char *name);              // the claim is still this process's own
void claims_fail(claims *c, const char *name, const char *reason); // of a job that this process holds
void claims_beat(claims *c); // call it often: touches what is held, when it is time

#endif
