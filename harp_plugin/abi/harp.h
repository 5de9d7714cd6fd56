/* What libnccl-net-harp.so offers beyond NCCL's tables: C functions, found with dlsym().
 *
 * They work on the comms of every version's table. Functions may be added; none changes.
 */
#ifndef HARP_H_
#define HARP_H_

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Sees `bytes` bytes of a message, which begin at its byte `offset`. They are the callee's until it
 * returns, and have any alignment. Elements of up to 64 bytes never straddle two calls. */
typedef void (*harp_take_fn)(void* context, size_t offset, const void* data, size_t bytes);

/* As irecv() of one buffer, but of a message of at most `bytes` bytes that is shown to `take` where it
 * arrived, so that a reduction needs no copy of it: each byte once, in any order of offsets. `take` is
 * called by whichever thread moves the network on, one call at a time, from now until test() has said
 * that the request is done, or the comm is closed; it must not call into this library, and returns
 * soon, since others wait. What test() then says of the size is to be compared with what was expected.
 *
 * Returns an ncclResult_t. `*request` is null where nothing can be posted now.
 */
int harp_irecv_take(
    void* recv_comm, size_t bytes, harp_take_fn take, void* context, void** request);
typedef int (*harp_irecv_take_fn)(void*, size_t, harp_take_fn, void*, void**);

/* Moves the network on, as test() of a request does, for callers that have no request under way and
 * will not have one soon. A message that has arrived is acknowledged with the caller's next call, as
 * that may be the answer to it; without a next call the sender waits for that up to a millisecond or
 * two. `comm` sends or receives. Returns an ncclResult_t.
 */
int harp_progress(void* comm);
typedef int (*harp_progress_fn)(void*);

#ifdef __cplusplus
}
#endif

#endif /* HARP_H_ */
