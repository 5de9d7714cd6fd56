// Python's view of one World: operations on tensors.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <pybind11/pybind11.h>

#include "lightcc/base/knobs.hpp"
#include "lightcc/engine/world.hpp"

#include "arguments.hpp"
#include "lightcc_cuda/staging/stream_order.hpp"
#include "repeats.hpp"
#include "tensors.hpp"

namespace lightcc::bindings {

/// Classes of `_core` have Python's own metaclass: none has static properties, for which pybind11
/// has another.
inline pybind11::metaclass plain_type() {
  return pybind11::metaclass(reinterpret_cast<PyObject*>(&PyType_Type));
}

/// A name as Python gives it, or none.
using OptionalName = Argument<std::optional<std::string>, "name">;
/// A process set's id, or none for a ProcessSet that is not registered.
using OptionalSet = std::optional<std::uint32_t>;

/// How contributions are combined.
struct ReduceArguments {
  int op = 0;  ///< A ReduceOp, unchecked.
  double prescale = 1.0;
  double postscale = 1.0;
  std::optional<CompressionSpec> compression = std::nullopt;  ///< Asks for compression.
};

/// How tensors travel together.
struct FusionArguments {
  bool together = false;  ///< As one all-or-nothing group.
  int rule = 0;           ///< A FusionRule, unchecked.
  std::uint64_t limit_bytes = 0;
};

/// Thread: any that holds the GIL, which guards the members. Each submitting method returns a
/// handle.
class WorldBinding : public std::enable_shared_from_this<WorldBinding> {
 public:
  /// `knobs` are those that the world was made with.
  WorldBinding(WorldPtr world, Knobs knobs);
  WorldBinding(const WorldBinding&) = delete;
  WorldBinding& operator=(const WorldBinding&) = delete;
  ~WorldBinding();

  World& engine() { return *world_; }
  const Repeats& repeats() const { return repeats_; }
  bool dynamic_process_sets() const { return knobs_.dynamic_process_sets; }
  const Knobs& knobs() const { return knobs_; }
  bool failed() const { return world_->failed(); }

  // `grouped`: `tensors` is a sequence, submitted as one all-or-nothing group; else it is one
  // tensor. `waits`: as in World::submit(). `sequence`: as in Operation. `outputs`: where results
  // go, grouped as `tensors` are; None: new tensors are made.
  std::int64_t allreduce(pybind11::handle tensors,
                         bool grouped,
                         bool in_place,
                         OptionalName name,
                         const ReduceArguments& reduce,
                         OptionalSet process_set,
                         bool waits,
                         std::string sequence);
  // In place, each tensor under its name; one handle for all, whose result is a list.
  std::int64_t allreduce_each(pybind11::handle tensors,
                              const std::vector<std::string>& names,
                              const ReduceArguments& reduce,
                              OptionalSet process_set,
                              const FusionArguments& fusion);
  std::int64_t allgather(pybind11::handle tensors,
                         bool grouped,
                         OptionalName name,
                         OptionalSet process_set,
                         bool waits,
                         pybind11::handle outputs,
                         std::string sequence,
                         std::optional<CompressionSpec> compression);
  std::int64_t reducescatter(pybind11::handle tensors,
                             bool grouped,
                             OptionalName name,
                             const ReduceArguments& reduce,
                             OptionalSet process_set,
                             bool waits,
                             pybind11::handle outputs,
                             std::string sequence);
  std::int64_t broadcast(pybind11::handle tensor,
                         bool in_place,
                         Argument<int, "root_rank"> root_rank,
                         OptionalName name,
                         OptionalSet process_set,
                         bool waits,
                         std::string sequence);
  std::int64_t alltoall(pybind11::handle tensor,
                        pybind11::handle splits,
                        OptionalName name,
                        OptionalSet process_set,
                        bool waits,
                        pybind11::handle output,
                        std::string sequence);
  std::int64_t send(pybind11::handle tensor,
                    Argument<int, "destination"> destination,
                    OptionalName name,
                    OptionalSet process_set,
                    bool waits,
                    std::string sequence);
  /// Its result is the tensor, and the rank that sent it.
  std::int64_t recv_any(pybind11::handle tensor, OptionalSet process_set, std::string sequence);
  std::int64_t recv(pybind11::handle tensor,
                    Argument<int, "source"> source,
                    OptionalName name,
                    OptionalSet process_set,
                    bool waits,
                    std::string sequence);
  // The next four have no asynchronous form in Python: who calls them waits.
  std::int64_t barrier(OptionalSet process_set);
  std::int64_t join();
  std::int64_t add_process_set(std::vector<std::int32_t> ranks);
  std::int64_t remove_process_set(std::int32_t process_set);

  /// Waits until GPUs have finished all that is done so far. Raises the world's error, and what a
  /// signal handler raises. Blocks (without the GIL).
  void finish();
  /// Ends the world on all ranks with kPeerFailed, which names this rank. Blocks (without the GIL).
  void fail(const std::string& reason);
  /// Leaves the world; its pending operations are abandoned. Raises the world's error where what a
  /// GPU had not finished fails meanwhile. Idempotent. Blocks (without the GIL).
  void shutdown();

 private:
  struct Call;
  std::int64_t submit(Call&& call,
                      std::vector<TensorView> tensors,
                      std::vector<TensorView> outputs = {});
  // `outputs`: the caller's, or None.
  std::int64_t submit(Call&& call, pybind11::handle tensors, pybind11::handle outputs);
  /// Finds the GPUs of tensors in CUDA memory. When their streams have done what they were given;
  /// null: now. Raises where they cannot be used.
  std::shared_ptr<ReadyEvent> order(std::vector<TensorView>& tensors,
                                    std::vector<TensorView>& outputs);
  std::int64_t start(const Call& call,
                     std::vector<Operation> operations,
                     std::vector<TensorView> tensors,
                     std::vector<TensorView> outputs = {});

  WorldPtr world_;
  pid_t owner_;  ///< The process that made the world: a forked child has none of its threads.
  Knobs knobs_;
  Repeats repeats_;
  std::shared_ptr<cuda::StreamOrder> stream_order_;  ///< Null: there was no CUDA tensor yet.
};

}  // namespace lightcc::bindings
