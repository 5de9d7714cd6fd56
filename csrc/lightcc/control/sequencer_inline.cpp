// Inputs that come with reports, and results that go with announcements (inline_allreduce.hpp).
#include <algorithm>
#include <utility>

#include "lightcc/control/agreement.hpp"
#include "lightcc/control/inline_allreduce.hpp"
#include "lightcc/control/sequencer.hpp"

namespace lightcc {

Status Sequencer::take_inputs(Pending& pending,
                              Ranks ranks,
                              const Signature& signature,
                              std::span<const InlineInput> inputs) {
  const std::size_t members = pending.members->size();
  for (const InlineInput& input : inputs) {
    const auto position = std::ranges::lower_bound(*pending.members, input.rank);
    const auto index = static_cast<std::size_t>(position - pending.members->begin());
    const bool makes_sense = std::ranges::find(ranks, input.rank) != ranks.end() &&
                             may_be_inline(signature, members, kMaxInlineBytes) &&
                             input.data.size() == byte_count(signature);
    if (!makes_sense || !pending.inputs.add(index, members, input.data)) {
      return make_error(ErrorCode::kPeerFailed,
                        "received an input of rank %d and %zu bytes with a report of '%s', which "
                        "makes no sense",
                        input.rank,
                        input.data.size(),
                        signature.name.c_str());
    }
  }
  return {};
}

bool Sequencer::announce_result(Pending& pending) {
  const Signature& s = pending.common;
  if (!pending.inputs.are_complete(pending.members->size()) || !options_.combine_inline ||
      fusion_of(s).rule == FusionRule::kHorovod) {
    return false;
  }
  Bytes result(pending.inputs.bytes().size() / pending.members->size());
  if (!options_.combine_inline(s, *pending.members, pending.inputs.bytes(), result)) {
    return false;
  }
  Execute execute;
  execute.sequence = next_sequence_++;
  execute.process_set = s.process_set;
  execute.tensors.push_back(announce_tensor(pending));
  execute.tensors.back().result = std::move(result);
  commands_.emplace_back(std::move(execute));
  return true;
}

}  // namespace lightcc
