#include "results_on_gpus.hpp"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "errors.hpp"
#include "world_binding.hpp"  // IWYU pragma: keep

namespace py = pybind11;

namespace lightcc::bindings {
namespace {

/// Guarded by the GIL. It is never destroyed: at exit, Python objects must not be released
/// after the interpreter.
struct Kept {
  std::vector<Pending> operations;
  bool waits_on_host = false;
};

Kept& kept() {
  static auto* const kKept = new Kept;
  return *kKept;
}

/// What the results are in, or are made like.
const std::vector<TensorView>& results_of(const Pending& pending) {
  return pending.outputs.empty() ? pending.tensors : pending.outputs;
}

bool is_on_gpu(const TensorView& view) {
  return view.ref.memory.kind == MemoryKind::kCuda;
}

bool uses_memory(const Pending& pending) {
  return pending.world->engine().uses_memory(pending.handle);
}

}  // namespace

Until until_of(const Pending& pending) {
  const bool waits =
      kept().waits_on_host || std::ranges::any_of(results_of(pending), [](const TensorView& view) {
        return is_on_gpu(view) && !view.kind->result_stream(view).has_value();
      });
  return waits ? Until::kFinished : Until::kEnqueued;
}

void order_streams(const Pending& pending) {
  if (!uses_memory(pending)) {
    return;
  }
  std::vector<std::uintptr_t> streams;
  for (const TensorView& view : results_of(pending)) {
    const auto stream = is_on_gpu(view) ? view.kind->result_stream(view) : std::nullopt;
    if (stream.has_value() && std::ranges::find(streams, *stream) == streams.end()) {
      streams.push_back(*stream);
    }
  }
  World& world = pending.world->engine();
  const Status failed = [&]() -> Status {
    const py::gil_scoped_release nogil;
    for (const std::uintptr_t stream : streams) {
      const Result<bool> ordered = world.order(pending.handle, stream);
      if (!ordered.ok() || !*ordered) {
        LIGHTCC_RETURN_IF_ERROR(world.finish({}));  // A failure of the GPU ends the world.
        return ordered.status();
      }
    }
    return {};
  }();
  throw_if_error(failed);
}

void keep_until_finished(Pending pending) {
  release_finished();
  if (uses_memory(pending)) {
    kept().operations.push_back(std::move(pending));
  }
}

void release_finished() {
  if (kept().operations.empty()) {
    return;
  }
  std::vector<Pending> finished;
  std::vector<Pending> left;
  for (Pending& pending : kept().operations) {
    (uses_memory(pending) ? left : finished).push_back(std::move(pending));
  }
  kept().operations = std::move(left);
  finished.clear();  // Which may run Python code that comes here again.
}

void register_results_on_gpus(py::module_& module) {
  module.def(
      "wait_on_host",
      [](bool enabled) { return std::exchange(kept().waits_on_host, enabled); },
      py::arg("enabled"),
      "Chooses whether wait() returns after GPUs have finished; returns what was chosen before.");
}

}  // namespace lightcc::bindings
