// The residual of one shard, in whatever memory, as all that takes steps sees it.
//
// A step changes nothing until it is committed. Which steps there are is the memory's own: kernels
// of all kinds write lists (compression_kernels.hpp), and a state in host memory does more
// (host_residual.hpp).
//
// Thread: the one that drives the progress loop.
#pragma once

#include <cstddef>

#include "lightcc/base/bytes.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/base/types.hpp"
#include "lightcc/compression/residual/step_energy.hpp"

namespace lightcc {

class HostResidual;

class ShardResidual {
 public:
  ShardResidual() = default;
  ShardResidual(const ShardResidual&) = delete;
  ShardResidual& operator=(const ShardResidual&) = delete;
  virtual ~ShardResidual() = default;

  virtual DataType dtype() const = 0;
  virtual std::size_t numel() const = 0;
  virtual bool is_pending() const = 0;
  /// Makes the pending step final. Nothing without one. A step that is not finite is rolled back
  /// instead.
  virtual void commit() = 0;
  /// Forgets the pending step: the state is what it was before, bit for bit. Nothing without one.
  virtual void rollback() = 0;
  /// What the pending step, or the last one, has; of no use where that was not finite. What
  /// came into a step that travelled dense had the residual in it already.
  virtual StepEnergy energy() const = 0;
  /// Appends the state to `out`: everything that later results depend on, bit for bit. Errors:
  /// kInternal while a step is pending. Byte table: docs/inside/wire-format.md. May block, for a
  /// device.
  virtual Status save(Bytes& out) const = 0;
  /// Itself where it is in host memory; null elsewhere.
  virtual HostResidual* on_host() { return nullptr; }

 protected:
  ShardResidual(ShardResidual&&) = default;
  ShardResidual& operator=(ShardResidual&&) = default;
};

}  // namespace lightcc
