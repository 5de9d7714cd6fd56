// How an asynchronous kernel tells TensorFlow that it is done.
#pragma once

#include <functional>

#include "tf_api.hpp"

namespace lightcc::tf {

using Done = std::function<void()>;

/// Whether `done` looks like what take_done() expects of it.
bool is_done_as_expected(const AsyncDone* done);

/// Whether `run_done` calls what lightcc takes for a callback. It is tried in a child process,
/// which may crash. True also where there can be no child: is_done_as_expected() looks again.
bool calls_back(void (*run_done)(AsyncDone*));

/// Takes the callback that TensorFlow passed to a kernel, before the kernel returns.
///
/// It is the address of a parameter of type std::function<void()>, which dies when the kernel
/// returns (2.14 to 2.21), whatever the header says of calling it later. So it is moved out. Should
/// TensorFlow allocate it one day, that is still right, and leaks a few bytes for each call.
Done take_done(AsyncDone* done);

/// Runs `work` soon, on a thread that belongs to nobody: callbacks may run parts of a graph, for
/// which the engine's thread must not wait. In the order of the calls. Thread: any.
void run_on_done_thread(std::function<void()> work);

}  // namespace lightcc::tf
