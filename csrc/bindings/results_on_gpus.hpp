// Results in CUDA memory that the GPU has not finished yet.
//
// The current stream of the thread that takes a tensor of torch's or an array of CuPy's waits for
// it. All else is waited for on the host, as nobody names the stream on which it is used. Tensors
// stay alive until the GPU has finished, whatever becomes of them in Python: those that it has
// finished are let go at the next call.
#pragma once

#include <pybind11/pybind11.h>

#include "handles.hpp"

namespace lightcc::bindings {

// All of this needs the GIL.

/// What to wait for on the host.
Until until_of(const Pending& pending);
/// Has this thread's streams wait for the results of an operation that has been waited for.
/// Raises the world's error where it has failed.
void order_streams(const Pending& pending);
/// Keeps what an operation has touched, where the GPU may still use it, and lets go of what it no
/// longer does.
void keep_until_finished(Pending pending);
/// Lets go of what the GPU has finished.
void release_finished();

void register_results_on_gpus(pybind11::module_& module);

}  // namespace lightcc::bindings
