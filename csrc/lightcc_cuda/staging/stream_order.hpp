// What operations wait for on GPUs: what a framework's streams have been given so far.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lightcc/base/export.hpp"
#include "lightcc/base/status.hpp"
#include "lightcc/engine/operation.hpp"

#include "lightcc_cuda/driver/driver.hpp"
#include "lightcc_cuda/staging/stream_event.hpp"

namespace lightcc::cuda {

/// A GPU that has a tensor, and the stream that wrote it.
struct GpuStream {
  std::int32_t device = 0;
  /// The driver's handle, where 0 and 1 are the default stream; none: nothing is to be waited for.
  std::optional<std::uintptr_t> handle{};
  bool operator==(const GpuStream&) const = default;
};

/// Opens the driver, and retains the context of a GPU, when it is first asked about one. Thread:
/// one at a time. Errors of all methods: kUnimplemented, there is no driver of use, and the message
/// says why; kSystem, a call of it failed.
class StreamOrder {
 public:
  StreamOrder() = default;
  StreamOrder(const StreamOrder&) = delete;
  StreamOrder& operator=(const StreamOrder&) = delete;
  virtual ~StreamOrder() = default;

  /// The GPU that has the memory at `address`. kInvalidArgument: none has.
  virtual Result<std::int32_t> device_of(const void* address) = 0;
  /// When all of `streams` have done what they were given so far; null: that is now. Checks that
  /// the GPUs can be used, whether there is something to wait for or not. kInvalidArgument: there
  /// is no such GPU, or a stream is being captured into a CUDA graph. The event outlives this.
  virtual Result<std::shared_ptr<ReadyEvent>> record(const std::vector<GpuStream>& streams,
                                                     Timing timing = Timing::kUnknown) = 0;
};

/// `file`: the driver's.
LIGHTCC_EXPORT std::shared_ptr<StreamOrder> make_stream_order(std::string file = kDriverFile);

}  // namespace lightcc::cuda
