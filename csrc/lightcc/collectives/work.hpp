// A Work is one collective in progress, as a resumable state machine.
//
// It never blocks: advance() does what can be done now and says how far it came. One progress loop
// advances many Works; dropping a Work before it is done abandons the operation, and from that
// moment nothing touches the caller's memory any more.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "lightcc/base/status.hpp"
#include "lightcc/collectives/device_end.hpp"

namespace lightcc {

enum class Progress : std::uint8_t {
  kIdle,   ///< Nothing could be done now; a peer or the network has to move first.
  kMoved,  ///< Something was done; asking again soon is worth it.
  kDone,   ///< The operation is complete; do not advance again.
};

class Work {
 public:
  Work() = default;
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;
  virtual ~Work() = default;

  /// Thread: the one that drives the progress loop, which is woken when it can go on. Blocks:
  /// never. Errors: those of the group's transport; the Work must then be dropped.
  virtual Result<Progress> advance() = 0;
  /// Its end on the device, once nothing is left for the host but to wait for that. Null: the host
  /// has a part in it, or it is not enqueued yet.
  virtual std::shared_ptr<DeviceEnd> device_end() const { return nullptr; }
};

/// An operation that could not be started.
class FailedWork final : public Work {
 public:
  explicit FailedWork(Status status) : status_(std::move(status)) {}
  Result<Progress> advance() override { return status_; }

 private:
  Status status_;
};

}  // namespace lightcc
