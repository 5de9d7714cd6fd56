// Operations in flight, by the small integers that Python calls handles.
//
// An entry owns what its operation touches: the tensors (so that user memory outlives the engine's
// use of it) and the world. Handles count up for the life of the process and are never reused, so
// that one of an earlier world cannot be taken for one of the present. The table is only touched
// with the GIL held, and is never destroyed: at exit, Python objects must not be released after the
// interpreter.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <pybind11/pybind11.h>

#include "lightcc/engine/world.hpp"

#include "tensors.hpp"

namespace lightcc::bindings {

class WorldBinding;

/// One handle's operation.
struct Pending {
  std::shared_ptr<WorldBinding> world;
  Handle handle;
  OpType op = OpType::kBarrier;
  bool grouped = false;             ///< The result is a list.
  bool in_place = false;            ///< The result is what was passed in.
  bool from_any = false;            ///< The result is the tensor and the rank that sent it.
  std::vector<TensorView> tensors;  ///< Without their shapes.
  std::vector<TensorView> outputs;  ///< The caller's, which are the results; empty: none given.
};

/// Remembers `pending`; returns its handle.
std::int64_t add_pending(Pending pending);
/// Forgets all operations of `world`, which has ended: waiting for one raises ShutDownError.
void abandon_pending(const WorldBinding* world);

/// Has `wait` wait, without the GIL. It is given what says whether a signal's handler has raised,
/// which then is `interruption`.
template <typename Wait>
auto wait_for_engine(std::optional<pybind11::error_already_set>& interruption, const Wait& wait) {
  const pybind11::gil_scoped_release nogil;
  return wait([&interruption] {
    const pybind11::gil_scoped_acquire gil;
    if (PyErr_CheckSignals() != 0) {
      interruption.emplace();
    }
    return interruption.has_value();
  });
}

void register_handles(pybind11::module_& module);

}  // namespace lightcc::bindings
