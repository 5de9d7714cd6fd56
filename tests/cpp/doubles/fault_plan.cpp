// Keeps the list of faults and which of them have fired. (Idea: fault_plan.hpp.)
#include "doubles/fault_plan.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "lightcc/transport/transport.hpp"

namespace lightcc {
namespace {

// Fragments start at multiples of this, as the contract of RecvChannel wants it.
constexpr std::size_t kLine = 64;

std::size_t round_up_to_line(std::size_t bytes) {
  return std::max<std::size_t>(1, bytes / kLine + (bytes % kLine != 0 ? 1 : 0)) * kLine;
}

bool matches(const FaultPlan::LinkFault& fault,
             FaultPlan::LinkFaultKind kind,
             const ChannelId& id,
             std::uint64_t message) {
  return !fault.fired && fault.kind == kind && fault.source == id.source &&
         fault.destination == id.destination && fault.message <= message;
}

}  // namespace

FaultPlan& FaultPlan::delay(unsigned most_polls) {
  most_delay_polls_ = most_polls;
  return *this;
}

FaultPlan& FaultPlan::fragment(std::size_t max_bytes) {
  most_fragment_bytes_ = round_up_to_line(max_bytes);
  return *this;
}

FaultPlan& FaultPlan::capacity(std::size_t bytes) {
  capacity_bytes_ = round_up_to_line(bytes);
  return *this;
}

FaultPlan& FaultPlan::cut(std::uint32_t source, std::uint32_t destination, std::uint64_t message) {
  link_faults_.push_back({.kind = LinkFaultKind::kCut,
                          .source = source,
                          .destination = destination,
                          .message = message});
  return *this;
}

FaultPlan& FaultPlan::stall(std::uint32_t source,
                            std::uint32_t destination,
                            std::uint64_t message) {
  link_faults_.push_back({.kind = LinkFaultKind::kStall,
                          .source = source,
                          .destination = destination,
                          .message = message});
  return *this;
}

bool FaultPlan::due(LinkFaultKind kind, const ChannelId& id, std::uint64_t message) const {
  return std::ranges::any_of(
      link_faults_, [&](const LinkFault& fault) { return matches(fault, kind, id, message); });
}

bool FaultPlan::fire(LinkFaultKind kind, const ChannelId& id, std::uint64_t message) {
  const auto found = std::ranges::find_if(
      link_faults_, [&](const LinkFault& fault) { return matches(fault, kind, id, message); });
  if (found == link_faults_.end()) {
    return false;
  }
  found->fired = true;
  return true;
}

std::vector<std::string> FaultPlan::unfired() const {
  std::vector<std::string> lines;
  if (most_delay_polls_ != 0 && !delayed_) {
    lines.emplace_back("delay");
  }
  if (most_fragment_bytes_ != 0 && !fragmented_) {
    lines.emplace_back("fragment");
  }
  for (const LinkFault& fault : link_faults_) {
    if (!fault.fired) {
      lines.push_back((fault.kind == LinkFaultKind::kCut ? "cut " : "stall ") +
                      std::to_string(fault.source) + "->" + std::to_string(fault.destination) +
                      " at message " + std::to_string(fault.message));
    }
  }
  return lines;
}

}  // namespace lightcc
