#include "lightcc/engine/control_options.hpp"

#include <cstddef>
#include <utility>

#include "lightcc/engine/combine_inline.hpp"

namespace lightcc {
namespace {

SequencerOptions sequencer_options(const Knobs& knobs,
                                   int size,
                                   FusionRule fusion,
                                   CombineInline combine_inline) {
  SequencerOptions options;
  options.world_size = size;
  options.num_lanes = static_cast<int>(knobs.num_lanes);
  options.slot_capacity = static_cast<std::size_t>(knobs.cache_capacity);
  options.fusion = fusion;
  options.fusion_threshold_bytes = static_cast<std::uint64_t>(knobs.fusion_threshold_bytes);
  options.horovod_threshold_bytes = static_cast<std::uint64_t>(knobs.horovod_threshold_bytes);
  options.horovod_cycle = seconds(knobs.horovod_cycle_ms / 1e3);
  options.stall_check = knobs.stall_check;
  options.stall_warning = seconds(knobs.stall_warning_s);
  options.stall_shutdown = seconds(knobs.stall_shutdown_s);
  options.slow_time = seconds(knobs.slow_time_s);
  options.combine_inline = std::move(combine_inline);
  return options;
}

}  // namespace

ControlOptions control_options(const Membership& world,
                               const Knobs& knobs,
                               FusionRule fusion,
                               SimdLevel simd,
                               std::vector<int> watched) {
  ControlOptions options;
  options.rank = world.topology.rank;
  if (world.parent.has_value()) {
    options.parent = ControlPeer{world.parent->peer_rank(), world.parent->fd() >= 0};
  }
  for (const ControlLink& child : world.children) {
    options.children.push_back({child.peer_rank(), child.fd() >= 0});
  }
  options.tree_parents = tree_parents(world.hosts);
  options.watched = std::move(watched);
  options.is_networked = world.transport != nullptr;
  options.peer_timeout = seconds(knobs.peer_timeout_s);
  options.wakes_parent = knobs.slow_time_s > 0;
  options.sequencer = sequencer_options(
      knobs, world.topology.size, fusion, make_combine_inline(world, knobs, simd));
  if (options.is_networked) {  // Ranks of one host gain nothing by it.
    options.max_inline_bytes = kInlineBytes;
  }
  options.process_sets = ProcessSetTable(world.topology.size);
  return options;
}

}  // namespace lightcc
