// The counters of a datapath, as base/counter.hpp wants them.
#pragma once

#include <array>
#include <cstdint>

#include "base/counter.hpp"
#include "datapath/datapath.hpp"

namespace harp {

inline constexpr std::array kWireCounters{
    Counter<DatapathStats>{
        &DatapathStats::packets_sent, "wire_packets_sent", "packets", "Packets sent, of any kind"},
    Counter<DatapathStats>{&DatapathStats::packets_received,
                           "wire_packets_received",
                           "packets",
                           "Packets received, of any kind"},
    Counter<DatapathStats>{
        &DatapathStats::bytes_sent, "wire_bytes_sent", "bytes", "HARP's headers included"},
    Counter<DatapathStats>{
        &DatapathStats::bytes_received, "wire_bytes_received", "bytes", "HARP's headers included"},
    Counter<DatapathStats>{&DatapathStats::batches_sent,
                           "wire_batches_sent",
                           "batches",
                           "Calls, or frames, that carried what was sent"},
    Counter<DatapathStats>{&DatapathStats::batches_received,
                           "wire_batches_received",
                           "batches",
                           "Calls, or frames, that carried what came"},
    Counter<DatapathStats>{
        &DatapathStats::blocked, "wire_blocked", "", "Times that the layer below took nothing"},
    Counter<DatapathStats>{
        &DatapathStats::send_errors, "wire_send_errors", "packets", "Packets refused for good"},
    Counter<DatapathStats>{&DatapathStats::handed_over,
                           "wire_handed_over",
                           "packets",
                           "Packets that came to another engine than their own"},
    Counter<DatapathStats>{&DatapathStats::bytes_copied_out,
                           "wire_bytes_copied_out",
                           "bytes",
                           "Payload that HARP copied to send it"},
    Counter<DatapathStats>{&DatapathStats::bytes_copied_in,
                           "wire_bytes_copied_in",
                           "bytes",
                           "Packets that HARP copied as they came, before placement"},
};
static_assert(sizeof(DatapathStats) == kWireCounters.size() * sizeof(std::uint64_t));

}  // namespace harp
