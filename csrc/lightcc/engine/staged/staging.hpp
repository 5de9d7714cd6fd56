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
#include "lightcc/compression/residual/compression_kernels.hpp"
#include "lightcc/engine/loop_bell.hpp"
#include "lightcc/engine/operation.hpp"

namespace lightcc {

/// A tensor, or bytes of one, and their offset in a block.
struct StagedPart {
  const std::byte* from = nullptr;  ///< Null: nothing is copied to the host.
  std::byte* to = nullptr;          ///< Null: nothing is copied back.
  std::int32_t device = 0;
  std::size_t bytes = 0;
  std::size_t offset = 0;
};

/// Host memory for parts of a bucket.
struct StagedBlock {
  std::vector<StagedPart> parts;
  std::size_t bytes = 0;
  std::shared_ptr<std::byte> host;
  bool needs_host = false;  ///< Also where nothing is copied to it.

  /// Adds a part behind the others, aligned for any element.
  void add(StagedPart part) {
    constexpr std::size_t kAlignment = 64;
    part.offset = bytes;
    bytes += (part.bytes + kAlignment - 1) / kAlignment * kAlignment;
    parts.push_back(part);
  }
  std::byte* at(const StagedPart& part) const {
    return host == nullptr ? nullptr : host.get() + part.offset;
  }
};

/// Serves one kind of memory for all worlds of a process. Thread: any; a Work belongs to the thread
/// that drives. Blocks: never, unless said otherwise.
class Staging {
 public:
  Staging() = default;
  Staging(const Staging&) = delete;
  Staging& operator=(const Staging&) = delete;
  virtual ~Staging() = default;

  virtual MemoryKind memory_kind() const = 0;

  /// Begins to use a device, so that nothing has to be loaded later, while its work may wait for
  /// other ranks. What fails here fails again in what is called then. Blocks.
  virtual void prepare(std::int32_t /*device*/) {}

  /// Memory for an output on a device. Errors: kSystem, kUnimplemented. May block.
  virtual Result<std::shared_ptr<OutputBuffer>> allocate(std::size_t bytes,
                                                         std::int32_t device) = 0;

  /// Compression of tensors of a device where they lie, while this is there; null: they are
  /// compressed in host memory.
  virtual CompressionKernels* topk_kernels(std::int32_t /*device*/) { return nullptr; }

  /// Adds a bell that is rung when a Work below can go on, while somebody holds it.
  virtual void connect(const std::weak_ptr<LoopBell>& bell) = 0;

  // `block` is left alone until the Work is done or dropped; dropping it blocks until a copy that
  // runs has ended. Copies to the host and copies back run beside one another. Errors: kSystem,
  // kUnimplemented.

  /// Sets `host` to memory of `bytes` bytes, unless it is set, with what is at every `from`; leaves
  /// it as it is where there is nothing to copy and it is not needed.
  virtual std::unique_ptr<Work> copy_to_host(std::shared_ptr<StagedBlock> block) = 0;
  /// Copies the parts to every `to`.
  virtual std::unique_ptr<Work> copy_to_device(std::shared_ptr<StagedBlock> block) = 0;
};

}  // namespace lightcc
