// A datapath that treats what is sent as a bad network would, for tests. Stands before any other
// datapath; packets that nothing happens to pass through without a copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "base/time.hpp"
#include "datapath/datapath.hpp"
#include "datapath/fault_spec.hpp"
#include "datapath/impairment.hpp"

namespace harp {

class FaultyDatapath final : public Datapath {
 public:
  FaultyDatapath(std::unique_ptr<Datapath> below, const FaultSpec& spec);

  const Address& address() const override { return below_->address(); }
  std::size_t mtu_bytes() const override { return below_->mtu_bytes(); }
  std::uint16_t local_ports() const override { return below_->local_ports(); }
  std::size_t buffer_bytes() const override { return below_->buffer_bytes(); }
  bool has_checksum() const override { return false; }  // The damage comes before it.
  std::span<const Arrival> receive() override { return below_->receive(); }
  std::size_t room() const override { return below_->room(); }
  void send(const Route& route,
            std::span<const std::byte> head,
            std::span<const std::byte> payload) override;
  bool flush(Time now) override;
  void discard() override;
  Time next_deadline() const override;
  int descriptor() const override { return below_->descriptor(); }
  bool prepare_to_wait() override { return below_->prepare_to_wait(); }
  DatapathStats stats() const override { return below_->stats(); }

 private:
  struct Delayed {
    Route route;
    std::vector<std::byte> packet;
  };

  void delay(Time at, const Route& route, std::vector<std::byte> packet);
  bool release();

  std::unique_ptr<Datapath> below_;
  Impairment impairment_;
  Time now_{};
  std::multimap<Time, Delayed> delayed_;          ///< Equal times keep their order.
  std::vector<std::vector<std::byte>> released_;  ///< What below_ may still read.
};

}  // namespace harp
