// A libnccl.so.2 for tests, over the fake driver. It is found and opened as the real one is.
//
// - Ranks are processes or threads, which meet in shared memory named by the unique id.
// - Communicators are blocking: making, splitting and connecting wait for all ranks, or the abort
//   by another thread. No two threads may call one at a time.
// - Operations run on the thread of the fake driver's stream, and add in rank order. One waits for
//   its peers without end, as NCCL does, until ncclCommAbort().
// - ncclCommAbort() and ncclCommDestroy() free memory of the GPU. So they wait for the operations
//   of all communicators that were split off the same one.
// - It is stricter than NCCL: all ranks must call the same operation, with the same count, type,
//   operator and root. A handle that was destroyed or aborted ends the process.
#pragma once

#include <string>
#include <vector>

namespace lightcc::cuda::fake {

/// How it behaves from now on, as "name=value,...". What is not named is as by default:
///   version=22809      what it says it is; from 2.22 on the first collective connects
///   fail=CALL:CODE:N   the N-th call of so named a function fails
///   broken=N           the N-th operation ends in an asynchronous error, which blames a peer
///   hangs=N            the N-th operation does not end until it is aborted
///   behind=N           operations behind the N-th wait on the GPU, until the next set_nccl()
///   connects=N         the N-th operation waits for a connection, and never begins
///   absent=N           the N-th rank to make a communicator from nothing fails before it has met
///                      others, which wait until the next set_nccl()
///   slow=MS            making and destroying a communicator takes so long
///   room=0             1: a rank's GPU has room for one operation at a time, of several streams
///   ordered=0          1: these begin in the order of calls, as with NCCL_LAUNCH_ORDER_IMPLICIT=1
///   lost=0             1: ncclCommAbort() does not return
///   asked=MS           ncclCommGetAsyncError() takes so long
/// A process that cannot call this sets LIGHTCC_FAKE_NCCL.
void set_nccl(const std::string& settings);

/// Communicators that have neither been destroyed nor aborted.
int live_nccl();
/// Communicators that have been aborted ever.
int aborts_of_nccl();
/// Operations, or groups of them, that the ranks of this process have begun since set_nccl().
int operations_of_nccl();
/// The communicators that each rank of this process has used since, in order.
std::vector<std::vector<std::string>> orders_of_nccl();
/// The streams that they have been put on since.
int streams_of_nccl();
// The same for who has the library alone, by ctypes.
extern "C" void lightcc_fake_nccl_set(const char* settings);
extern "C" int lightcc_fake_nccl_live();
extern "C" int lightcc_fake_nccl_operations();
/// What NCCL_NET_PLUGIN or NCCL_NET was when a communicator was last made from nothing.
extern "C" const char* lightcc_fake_nccl_saw(const char* variable);

}  // namespace lightcc::cuda::fake
