// Two stacks over memory and a session between them, which streams messages one way: an engine at
// each end, isolated from every other pair.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/time.hpp"
#include "bench.hpp"
#include "buffers.hpp"
#include "datapath/memory.hpp"
#include "runtime/backlog.hpp"
#include "runtime/channel.hpp"
#include "runtime/stack.hpp"
#include "shape.hpp"

namespace harp_cycles {

class Pair final : public Bench {
 public:
  explicit Pair(const Shape& shape);

  /// A batch of packets: parts 0 and 1 are the sender's and the receiver's turns.
  void step(Tally& tally) override;
  std::uint64_t checked() const override { return buffers_.checked(); }

 private:
  void connect();
  void post();
  void settle();
  harp::Time later() { return now_ += kBurstInterval; }

  Shape shape_;
  Buffers buffers_;
  harp::MemoryNetwork network_;
  harp::Stack sender_;
  harp::Stack receiver_;
  std::shared_ptr<harp::Channel> from_;
  std::shared_ptr<harp::Channel> to_;
  std::vector<harp::RequestId> sends_;  ///< By message, modulo how many are outstanding.
  std::vector<harp::RequestId> receives_;
  harp::Time now_{std::chrono::seconds(1)};
  std::uint64_t posted_ = 0;
  std::uint64_t received_ = 0;
  std::uint64_t completed_ = 0;
};

}  // namespace harp_cycles
