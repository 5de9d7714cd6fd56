// What brings tensors of another kind of memory to the host and back, for buckets to run on the
// host's plane: every operation works on such memory that way.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "lightcc/base/status.hpp"
#include "lightcc/base/types.hpp"
#include "lightcc/collectives/work.hpp"
#include "lightcc/engine/operation.hpp"

namespace lightcc {

/// A tensor and its copy in host memory.
struct StagedTensor {
  std::byte* data = nullptr;  ///< Null: there is none.
  std::int32_t device = 0;
  std::size_t bytes = 0;
  std::shared_ptr<std::byte> host{};
};
/// Of one bucket.
using StagedTensors = std::vector<StagedTensor>;

/// Serves one kind of memory for all worlds of a process. Thread: any; a Work belongs to the thread
/// that drives. Blocks: never, unless said otherwise.
class Staging {
 public:
  Staging() = default;
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  virtual ~Staging() = default;

  virtual MemoryKind memory_kind() const = 0;

  /// Memory for an output on a device. Errors: kSystem, kUnimplemented. May block.
  virtual Result<std::shared_ptr<OutputBuffer>> allocate(std::size_t bytes,
                                                         std::int32_t device) = 0;

  // Nobody rings when such a Work can go on. `tensors` is left alone until it is done or dropped;
  // dropping it blocks until a copy that runs has ended. Errors: kSystem, kUnimplemented.

  /// Sets every `host` to memory with what is at `data`.
  virtual std::unique_ptr<Work> copy_to_host(std::shared_ptr<StagedTensors> tensors) = 0;
  /// Copies every `host` to `data`.
  virtual std::unique_ptr<Work> copy_to_device(std::shared_ptr<StagedTensors> tensors) = 0;
};

}  // namespace lightcc
