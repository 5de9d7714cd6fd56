#include "lightcc/compression/topk/topk_step.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <vector>

#include "lightcc/base/half.hpp"
#include "lightcc/collectives/kernels/float_mode.hpp"
#include "lightcc/compression/kernels/float_types.hpp"
#include "lightcc/compression/kernels/topk_block.hpp"
#include "lightcc/compression/topk/packed_list.hpp"
#include "lightcc/compression/topk/threshold.hpp"

namespace lightcc::detail {
namespace {

constexpr std::size_t kUnlimited = std::numeric_limits<std::size_t>::max();
/// The search for the exact threshold has acc of so many elements at a time, in the L1 cache.
constexpr std::size_t kChunkElems = 4096;
/// Residuals from here on are written past the caches: they would not stay there until the next
/// step anyway, and a line that is written as a whole need not be read first.
constexpr std::size_t kStreamBytes = std::size_t{4} << 20;
/// What a sample takes at a time: a cache line of float32.
constexpr std::size_t kGroupElems = 16;
/// Selected elements that a sample should hold, and the fewest elements it may take.
constexpr std::size_t kSampledSelected = 256;
constexpr std::size_t kMaxSampleStride = 64;
/// A relative change of the ideal threshold from one step to the next that may well be chance.
constexpr double kNoise = 0.03;

/// Room for one block's selected elements; kept by the thread.
struct Scratch {
  std::vector<std::uint16_t> offsets =
      std::vector<std::uint16_t>(kTopkBlockElems + kTopkBlockSlack);
  std::vector<std::byte> values =
      std::vector<std::byte>((kTopkBlockElems + kTopkBlockSlack) * sizeof(double));
  MagnitudeSample sample;
};

Scratch& thread_scratch() {
  thread_local Scratch scratch;
  return scratch;
}

/// What one pass is to select.
struct Selection {
  std::uint64_t key = 0;             ///< Magnitudes from here on.
  std::size_t ties = kUnlimited;     ///< So many of those that are just `key`.
  std::size_t maximum = kUnlimited;  ///< Give up when more are selected.
  bool samples = false;
};

struct Selected {
  std::size_t count = 0;  ///< Elements that reached the key, listed or not.
  bool non_finite = false;
  bool gave_up = false;
};

template <typename Type>
class Step {
 public:
  using Lane = Type::Lane;
  using Wire = Type::Wire;
  using Key = KeyOf<Lane>;

  Step(const TopkStepJob& job,
       const std::byte* shard,
       const TopkRequest& request,
       ListWriter& writer)
      : job_(job),
        shard_(shard),
        request_(request),
        writer_(writer),
        momentum_(static_cast<Lane>(job.momentum)),
        has_scales_(TopkFormat{job.dtype, request.fp16}.has_scales()),
        packs_(TopkFormat{.dtype = job.dtype, .two_bits = request.two_bits}.packs()),
        kernel_(topk_block_kernel(job.level)),
        scratch_(thread_scratch()) {}

  // Out of line: compilers do not order arithmetic against the float mode.
  [[gnu::noinline]] TopkOutcome run(TopkForecast& forecast) {
    if (request_.k == job_.numel) {
      const Selected all = select({.key = 0});
      forecast = {};
      return outcome(all.non_finite);
    }
    if (!request_.exact && forecast.threshold > 0.0 && forecast.k == request_.k) {
      const Key key = std::max<Key>(magnitude_key(static_cast<Lane>(forecast.threshold)), 1);
      const Selected some =
          select({.key = key, .maximum = request_.k + request_.k / 4, .samples = true});
      if (some.non_finite || is_acceptable(some, key)) {
        forecast = some.non_finite ? forecast : next_forecast(forecast, some.count, key);
        return outcome(some.non_finite);
      }
      writer_.restart();
    }
    return run_exact(forecast);
  }

 private:
  TopkOutcome outcome(bool non_finite) {
    TopkOutcome result{.non_finite = non_finite, .passes = passes_};
    result.bytes = non_finite ? writer_.finish_non_finite() : writer_.finish();
    result.count = writer_.count();
    return result;
  }

  /// A threshold that zeros alone do not reach cannot be lowered, however few reach it.
  bool is_acceptable(const Selected& some, Key key) const {
    return !some.gave_up && (key == 1 || 3 * some.count >= 2 * request_.k);
  }

  TopkOutcome run_exact(TopkForecast& forecast) {
    const ExactThreshold found = ExactSearch<Lane>(job_.numel, request_.k).run([&](auto visit) {
      return for_each_chunk(visit);
    });
    passes_ += found.passes;
    if (found.non_finite) {
      return outcome(true);
    }
    Selection selection{.key = found.key, .ties = found.ties};
    if (found.key == 0 && !request_.exact) {
      selection = {.key = 1};  // Zeros need not travel.
    }
    const Selected some = select(selection);
    const Lane ideal = std::bit_cast<Lane>(static_cast<Key>(selection.key));
    forecast = make_forecast(forecast, static_cast<double>(ideal));
    return outcome(some.non_finite);
  }

  // ---- Forecasts.

  TopkForecast next_forecast(const TopkForecast& last, std::size_t count, Key key) const {
    const std::optional<double> ideal = scratch_.sample.magnitude_reached_by(request_.k, count);
    if (ideal && *ideal > 0.0) {
      return make_forecast(last, *ideal);
    }
    if (ideal || key == 1) {
      return make_forecast(last, double{std::numeric_limits<Lane>::denorm_min()});
    }
    return {};
  }

  /// Magnitudes are taken to go on changing as they did in the last step if that was much
  /// (residuals grow for the first 1/density steps), and to stay if it was little, which is noise.
  TopkForecast make_forecast(const TopkForecast& last, double ideal) const {
    TopkForecast next{.threshold = ideal, .ideal = ideal, .k = request_.k};
    const double change = ideal - last.ideal;
    // Without a change there is nothing to trust. The noise of a denormal may be zero as well.
    if (last.k == request_.k && last.ideal > 0.0 && change != 0.0) {
      const double trust = std::abs(change) / (std::abs(change) + kNoise * ideal);
      next.threshold = std::clamp(ideal + trust * change, ideal / 2, ideal * 2);
    }
    next.threshold = std::min(next.threshold, double{std::numeric_limits<Lane>::max()});
    return next;
  }

  // ---- Passes.

  TopkBlockJob block_job(std::size_t first, std::size_t count) const {
    TopkBlockJob block{.shard = shard_ + first * sizeof(Wire),
                       .residual = job_.residual->current() + first * sizeof(Lane),
                       .count = count,
                       .dtype = job_.dtype,
                       .momentum = job_.momentum,
                       .offsets = scratch_.offsets.data(),
                       .values = scratch_.values.data()};
    if (job_.velocity != nullptr) {
      block.velocity = job_.velocity->current() + first * sizeof(Lane);
    }
    return block;
  }

  /// Shows acc to `visit`, which must not keep it. Returns whether all is finite.
  template <typename Visit>
  bool for_each_chunk(const Visit& visit) {
    bool finite = true;
    for (std::size_t first = 0; first < job_.numel && finite; first += kChunkElems) {
      const std::size_t count = std::min(kChunkElems, job_.numel - first);
      finite = !kernel_(block_job(first, count)).non_finite;
      visit(lanes(), count);
    }
    return finite;
  }

  Selected select(const Selection& selection) {
    ++passes_;
    ties_left_ = selection.ties;
    if (selection.samples) {
      scratch_.sample.restart();
    }
    // What is touched again at once had better be in the caches.
    const bool stream =
        !Type::kRounds && !has_scales_ && !packs_ && job_.numel * sizeof(Lane) >= kStreamBytes;
    Selected total;
    for (std::size_t first = 0; first < job_.numel; first += kTopkBlockElems) {
      const std::size_t count = std::min(kTopkBlockElems, job_.numel - first);
      TopkBlockJob block = block_job(first, count);
      block.next_residual = job_.residual->next() + first * sizeof(Lane);
      if (job_.velocity != nullptr) {
        block.next_velocity = job_.velocity->next() + first * sizeof(Lane);
      }
      block.threshold = selection.key;
      block.stream = stream;
      const TopkBlockResult result = kernel_(block);
      total.count += result.selected;
      total.non_finite = result.non_finite;
      total.gave_up = total.count > selection.maximum;
      if (total.non_finite || total.gave_up) {
        return total;
      }
      write_block(first, result.selected, selection);
      if (selection.samples) {
        sample(first, count, static_cast<Key>(selection.key));
      }
    }
    return total;
  }

  // ---- Lists.

  Lane* lanes() { return reinterpret_cast<Lane*>(scratch_.values.data()); }

  void write_block(std::size_t first, std::size_t selected, const Selection& selection) {
    const bool is_whole = selection.ties == kUnlimited && selected <= writer_.room();
    const std::size_t count =
        is_whole ? selected : keep_some(first, selected, static_cast<Key>(selection.key));
    std::memcpy(writer_.offsets(), scratch_.offsets.data(), count * sizeof(std::uint16_t));
    int exponent = 0;
    if (packs_) {
      write_means(first, count);
    } else if (has_scales_) {
      exponent = write_scaled(first, count);
    } else if constexpr (Type::kRounds) {
      write_rounded(first, count);
    } else {
      std::memcpy(writer_.values(), scratch_.values.data(), count * sizeof(Lane));
    }
    writer_.finish_block(count, exponent);
  }

  /// Puts back what is not to be listed: ties beyond those wanted, and what finds no room.
  std::size_t keep_some(std::size_t first, std::size_t selected, Key key) {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < selected; ++i) {
      const Lane value = lanes()[i];
      const std::size_t offset = scratch_.offsets[i];
      const bool is_tie = magnitude_key(value) == key;
      if (kept == writer_.room() || (is_tie && ties_left_ == 0)) {
        restore(first + offset, value);
        continue;
      }
      ties_left_ -= is_tie ? 1U : 0U;
      lanes()[kept] = value;
      scratch_.offsets[kept] = static_cast<std::uint16_t>(offset);
      ++kept;
    }
    return kept;
  }

  void restore(std::size_t element, Lane value) {
    store_as(job_.residual->next() + element * sizeof(Lane), value);
    if (job_.velocity != nullptr) {
      store_as(job_.velocity->next() + element * sizeof(Lane), step_of(element));
    }
  }

  /// What rounding takes away from element `offset` of the block stays in the residual.
  void keep_remainder(std::size_t element, Lane value, Lane sent) {
    store_as(job_.residual->next() + element * sizeof(Lane), value - sent);
  }

  void write_rounded(std::size_t first, std::size_t count) {
    std::byte* to = writer_.values();
    for (std::size_t i = 0; i < count; ++i) {
      const Wire wire = Type::encode_saturating(lanes()[i]);
      store_as(to + i * sizeof(Wire), wire);
      keep_remainder(first + scratch_.offsets[i], lanes()[i], Type::decode(wire));
    }
  }

  /// As float16 with the largest in [2^14, 2^15]. Returns the exponent of the scale.
  int write_scaled(std::size_t first, std::size_t count) {
    Key largest = 0;
    for (std::size_t i = 0; i < count; ++i) {
      largest = std::max(largest, magnitude_key(lanes()[i]));
    }
    const Lane maximum = std::bit_cast<Lane>(largest);
    const int wanted = maximum > 0 ? std::ilogb(maximum) - 14 : 0;
    const int exponent = std::clamp(wanted, kMinScaleExponent<Lane>, kMaxScaleExponent<Lane>);
    const Lane down = power_of_two<Lane>(-exponent);
    const Lane up = power_of_two<Lane>(exponent);
    std::byte* to = writer_.values();
    for (std::size_t i = 0; i < count; ++i) {
      const Lane value = lanes()[i];
      const Lane scaled = std::clamp(value * down, Lane{-kHalfLimit}, Lane{kHalfLimit});
      const std::uint16_t half = float_to_half(static_cast<float>(scaled));
      store_as(to + i * sizeof(half), half);
      keep_remainder(first + scratch_.offsets[i], value, Lane{half_to_float(half)} * up);
    }
    return exponent;
  }

  /// As the mean magnitudes of those below and above the mean of their chunk.
  void write_means(std::size_t first, std::size_t count) {
    std::size_t begin = 0;
    while (begin < count) {
      const std::size_t chunk = scratch_.offsets[begin] / kTopkChunkElems;
      std::size_t end = begin;
      double total = 0.0;
      for (; end < count && scratch_.offsets[end] / kTopkChunkElems == chunk; ++end) {
        total += std::abs(static_cast<double>(lanes()[end]));
      }
      write_chunk(first, begin, end, total / static_cast<double>(end - begin));
      begin = end;
    }
  }

  void write_chunk(std::size_t first, std::size_t begin, std::size_t end, double mean) {
    std::array<double, 2> totals{};
    std::array<std::size_t, 2> counts{};
    const auto is_large = [&](std::size_t i) {
      return std::abs(static_cast<double>(lanes()[i])) > mean ? 1U : 0U;
    };
    for (std::size_t i = begin; i < end; ++i) {
      totals[is_large(i)] += std::abs(static_cast<double>(lanes()[i]));
      counts[is_large(i)] += 1;
    }
    std::array<Lane, 2> levels{};
    for (std::size_t at = 0; at < 2; ++at) {
      const double level = counts[at] == 0 ? 0.0 : totals[at] / static_cast<double>(counts[at]);
      levels[at] = static_cast<Lane>(
          Bfloat16Type::decode(Bfloat16Type::encode_saturating(static_cast<float>(level))));
    }
    for (std::size_t i = begin; i < end; ++i) {
      const Lane value = lanes()[i];
      const Lane sent = std::copysign(levels[is_large(i)], value);
      store_as(writer_.values() + i * sizeof(Wire), Type::encode(sent));
      keep_remainder(first + scratch_.offsets[i], value, sent);
    }
  }

  // ---- Single elements, as the kernels compute them.

  /// u.
  Lane step_of(std::size_t element) const {
    const Lane given = Type::decode(load_as<Wire>(shard_ + element * sizeof(Wire)));
    if (job_.velocity == nullptr) {
      return given;
    }
    return load_as<Lane>(job_.velocity->current() + element * sizeof(Lane)) * momentum_ + given;
  }

  Lane acc_of(std::size_t element) const {
    return step_of(element) + load_as<Lane>(job_.residual->current() + element * sizeof(Lane));
  }

  /// Every stride-th group, other groups in every step. Just read, so still in the cache.
  void sample(std::size_t first, std::size_t count, Key key) {
    const std::size_t stride =
        std::clamp<std::size_t>(std::bit_floor(request_.k / kSampledSelected), 1, kMaxSampleStride);
    const auto skipped = static_cast<std::size_t>(job_.step % stride);
    for (std::size_t at = skipped * kGroupElems; at < count; at += stride * kGroupElems) {
      const std::size_t end = std::min(at + kGroupElems, count);
      for (std::size_t i = at; i < end; ++i) {
        const Lane magnitude = std::abs(acc_of(first + i));
        scratch_.sample.add(magnitude, magnitude_key(magnitude) >= key);
      }
    }
  }

  const TopkStepJob& job_;
  const std::byte* shard_;
  const TopkRequest& request_;
  ListWriter& writer_;
  Lane momentum_;
  bool has_scales_;
  bool packs_;
  TopkBlockKernel kernel_;
  Scratch& scratch_;
  std::size_t ties_left_ = kUnlimited;
  int passes_ = 0;
};

}  // namespace

TopkOutcome run_topk_step(const TopkStepJob& job,
                          const std::byte* shard,
                          const TopkRequest& request,
                          TopkForecast& forecast,
                          ListWriter& writer) {
  const IeeeFloatMode mode;
  return with_float_type(job.dtype, [&](auto type) {
    return Step<decltype(type)>(job, shard, request, writer).run(forecast);
  });
}

}  // namespace lightcc::detail
