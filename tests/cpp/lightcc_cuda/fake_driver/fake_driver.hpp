// A libcuda.so.1 for tests, whose GPU is the simulator. It is found and opened as the real one is.
//
// - Streams are threads with queues, so what is not ordered by events is a race that
//   ThreadSanitizer reports.
// - Addresses of device memory cannot be read by the host: that crashes where it happens. Copies
//   and kernels translate them.
// - Kernels run only if the module has them, and their arguments are copied at the launch.
// - Copies to and from host memory that is not pinned block, as they do on a GPU. So does freeing
//   memory until all streams of its GPU are done, and a call on a stream that has 1024 to do.
// - Memory of a pool breaks the GPU where it is used after it was freed, or still by other streams.
// - It counts copies, and can hold them.
// - Calls that need a current context fail without one.
// - A call can be made to fail; from code 700 on all later ones then fail, too, and streams run
//   nothing more.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <string_view>

#include "lightcc_cuda/driver/functions.hpp"
#include "lightcc_cuda/fake_driver/traffic.hpp"

namespace lightcc::cuda::fake {

/// How it behaves from now on, as "name=value,...". What is not named is as by default:
///   version=12080      of the driver
///   init=0             what cuInit() returns
///   devices=1          GPUs
///   capability=90      of all GPUs
///   memory_mb=1024     of each GPU; what all of them have of it counts together
///   ptx=1              0: it cannot compile what modules hold
///   cubin=1            0: machine code is for another GPU
///   wrong=0            1: kernels do nothing
///   without=FUNCTION   it has no cuDeviceGetUuid_v2 (new in CUDA 11.4), or no cuFuncLoad (12.4)
///   fail=CALL:CODE:N   the N-th call of so named a function fails; 0: each does
///   hold=DEVICE:N      copies from that GPU to the host wait behind the N-th, until the next set()
///   delay_us=0         what streams wait before each operation, at most
///   unified=0          1: the host reads device memory, and its own memory counts as such
///   capturing=0        1: every stream is being captured into a graph
///   graph=0            1: a thread captures a graph in the mode "global": of threads in the same
///                      mode, calls that are forbidden then fail with 900, and spoil the capture
///   pools=1            0: GPUs have no memory pools
///   bus=1              where the first GPU is: processes whose GPUs differ say different numbers
/// A process that cannot call this sets LIGHTCC_FAKE_CUDA.
/// Counts begin anew.
void set(const std::string& settings);

/// What machine code begins with. For the fake it goes on as PTX does.
inline constexpr std::string_view kCubinMagic =
    "\x7f"
    "ELF";

// Since the last set().

/// Copies that were asked for, of memory of a GPU.
Copies copies_of(int device);
/// Kernels that were launched.
int launches();
/// Calls that need a context, of any kind.
int calls();
/// Modules that were loaded.
int modules_loaded();
/// Events that were made and know their time.
int timed_events();
/// Streams that were made, by their priority: 0 is the lowest, -5 the highest.
std::map<int, int> streams_by_priority();
/// The most pinned memory at a time, beyond what there was.
std::size_t pinned_growth();

/// Calls that have spoiled the capture of a graph, since the process began.
int spoiled_captures_of_graphs();

/// Contexts, modules, streams, events and memory that have not been given back.
int live();
/// The same for who has the library alone, by ctypes.
extern "C" void lightcc_fake_cuda_set(const char* settings);
extern "C" int lightcc_fake_cuda_live();

// For the fake NCCL: runs something in a stream's order, and finds device memory (null: none).
// `give_back` frees the argument afterwards, or where the GPU is broken and runs nothing.
extern "C" void lightcc_fake_cuda_enqueue(StreamHandle* stream,
                                          void (*operation)(void*),
                                          void* argument,
                                          void (*give_back)(void*));
extern "C" void* lightcc_fake_cuda_memory(Address address);

}  // namespace lightcc::cuda::fake
