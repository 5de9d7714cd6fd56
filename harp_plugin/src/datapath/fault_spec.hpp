// Faults as a user writes them, for tests of what stands on HARP:
//
//   HARP_FAULT="loss=0.01,duplicate=0.05,reorder=0.1:2ms,corrupt=0.01,delay=1ms,jitter=500us,
//               rate=1g:64,policer=200m:64k,burst=0.001:64,dark=0x3,seed=7"
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "datapath/impairment.hpp"

namespace harp {

struct FaultSpec {
  ImpairmentConfig impairment;
  std::uint64_t seed = 1;
};

/// Reads "name=value,..."; nothing, and `error` says what is wrong, where it cannot. Shares are
/// 0 .. 1; times end in ns, us, ms or s; rates are bits per second with k, m or g, sizes bytes with
/// k, m or g.
///   loss, duplicate, corrupt: share of packets         burst: share, most packets in a row
///   reorder: share, most extra delay                   delay, jitter: time
///   rate: bits per second, packets that wait           policer: bits per second, bytes at once
///   dark: bit mask of paths that lose everything       mtu: bytes       seed: number
std::optional<FaultSpec> parse_fault_spec(std::string_view text, std::string* error);

}  // namespace harp
