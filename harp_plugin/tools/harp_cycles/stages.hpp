// The loops over single stages, and over sessions and stacks as a whole.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "bench.hpp"
#include "shape.hpp"

namespace harp_cycles {

/// Transmitting, each with one stage more than the one before: records; path; pacing; header and
/// MAC; CRC; copy; frame headers.
std::vector<std::unique_ptr<Bench>> transmit_benches(const Shape& shape);
inline constexpr std::size_t kTransmitBenches = 7;

/// Receiving: parsing, lookup and MAC; placement; CRC; copy; frame headers.
std::vector<std::unique_ptr<Bench>> receive_benches(const Shape& shape);
inline constexpr std::size_t kReceiveBenches = 5;

/// Two sessions. Parts: packets sent, acknowledgements taken; packets taken, acknowledgements sent.
std::unique_ptr<Bench> session_bench(const Shape& shape);

/// Two stacks over memory. Parts: the sender's turns, the receiver's.
std::unique_ptr<Bench> turn_bench(const Shape& shape);

}  // namespace harp_cycles
