#include "lightcc/compression/exchange/compressed_item.hpp"

#include <algorithm>
#include <utility>

#include "lightcc/collectives/grid/grid_state.hpp"

namespace lightcc {

namespace {

Reduction reduction_after_blocks(const Reduction& reduction, const GridPosition& position) {
  return position.members == 1 ? reduction : between_blocks(reduction);
}

}  // namespace

double late_factor(const Reduction& reduction, const GridPosition& position) {
  const Reduction late = reduction_after_blocks(reduction, position);
  return late.prescale * late.postscale;
}

CompressedBuffer make_compressed_buffer(std::size_t bytes) {
  // NOLINTNEXTLINE(modernize-avoid-c-arrays): see CompressedBuffer.
  return std::make_unique_for_overwrite<std::byte[]>(std::max<std::size_t>(bytes, 1));
}

CompressedItem::CompressedItem(CompressedTensor tensor, const CompressedJob& job)
    : tensor_(std::move(tensor)),
      job_(job),
      element_bytes_(element_size(job.reduction.dtype)),
      shard_(shard_of(position().member)) {}

CompressedItem::~CompressedItem() {
  if (state().is_pending()) {
    state().rollback();
  }
}

ShardRange CompressedItem::shard_of(std::size_t member) const {
  return shard_range(span().count, position().members, member, job_.reduction.dtype);
}

std::byte* CompressedItem::result() {
  if (span().out != nullptr && !job_.shards_apart) {
    return span().out + to_bytes(shard_.begin);
  }
  if (apart_ == nullptr) {
    apart_ = kernels().allocate(to_bytes(shard_.size_elems()));
  }
  return apart_.get();
}

const std::byte* CompressedItem::input() {
  return position().members > 1 ? result() : span().in;
}

Reduction CompressedItem::late_reduction() const {
  return reduction_after_blocks(job_.reduction, position());
}

void CompressedItem::prepare(MemberSpans& spans) {
  for (std::size_t member = 0; member < position().members; ++member) {
    const ShardRange shard = shard_of(member);
    spans.add(member,
              {.in = span().in == nullptr ? nullptr : span().in + to_bytes(shard.begin),
               .out = member == position().member ? result() : nullptr,
               .count = shard.size_elems()});
  }
}

Reduction CompressedItem::scatter_reduction() const {
  return within_blocks(job_.reduction);
}

void CompressedItem::count(std::uint64_t sent_bytes, std::uint64_t passes) {
  const std::size_t blocks = position().blocks;
  const std::size_t dense_bytes = 2 * (blocks - 1) * to_bytes(shard_.size_elems()) / blocks;
  CompressionCounters& counters = *job_.counters;
  counters.tensors += 1;
  counters.on_device += job_.on_device && shard_.size_elems() > 0 ? 1 : 0;
  counters.dense_bytes += dense_bytes;
  counters.sent_bytes += sent_bytes;
  counters.passes += passes;
  CompressionUsage& usage = tensor_.entry->usage;
  usage.dense_bytes += dense_bytes;
  usage.sent_bytes += sent_bytes;
}

void CompressedItem::add_shards(MemberSpans& spans) {
  std::byte* const out = span().out;
  for (std::size_t member = 0; member < position().members; ++member) {
    const ShardRange shard = shard_of(member);
    spans.add(member,
              {.in = member == position().member ? result() : nullptr,
               .out = out == nullptr ? nullptr : out + to_bytes(shard.begin),
               .count = shard.size_elems()});
  }
}

void CompressedItem::end_step() {
  TensorResidual& entry = *tensor_.entry;
  ++entry.steps;
  if (!non_finite_) {
    entry.state->commit();
    ++entry.usage.steps;
    entry.usage.add(entry.state->energy());
    return;
  }
  entry.state->rollback();
}

void CompressedItem::conclude(KernelCalls& calls) {
  end_step();
  if (!non_finite_) {
    return;
  }
  // A list that is not finite makes all elements NaN: where shards are gathered, those of the own
  // one.
  std::byte* const out = job_.gathers_shards ? result() : span().out;
  const std::size_t elements = job_.gathers_shards ? shard_.size_elems() : span().count;
  if (out == nullptr) {
    return;
  }
  const DataType dtype = job_.reduction.dtype;
  const TopkListView flagged{.elements = elements, .format = {.dtype = dtype}, .non_finite = true};
  calls.add(kernels(),
            TopkSum{.lists = {flagged},
                    .out = out,
                    .elements = elements,
                    .dtype = dtype,
                    .postscale = late_factor()});
}

}  // namespace lightcc
