#include "lightcc/collectives/one_shot_rounds.hpp"

#include <cstring>

namespace lightcc {
namespace {

// An area's state: ranks that have passed its rounds, of all rounds, and the last of its rounds
// that was given up. Both wrap around.
struct State {
  std::uint32_t passed = 0;
  std::uint32_t given_up = 0;
};

State unpack(std::uint64_t state) {
  return {.passed = static_cast<std::uint32_t>(state),
          .given_up = static_cast<std::uint32_t>(state >> 32)};
}

std::uint64_t pack(const State& state) {
  return (std::uint64_t{state.given_up} << 32) | state.passed;
}

constexpr std::size_t kLine = 64;

}  // namespace

std::size_t OneShotRounds::stride(std::size_t members) {
  return kMaxTotal / members / kLine * kLine;
}

std::size_t OneShotRounds::area_bytes(std::size_t members) {
  const std::size_t bytes = sizeof(Area) + members * (sizeof(Card) + stride(members));
  return (bytes + alignof(Area) - 1) / alignof(Area) * alignof(Area);
}

std::size_t OneShotRounds::bytes(std::size_t members) {
  return 2 * area_bytes(members);
}

OneShotRounds::OneShotRounds(std::span<std::byte> memory, std::size_t members, std::size_t index)
    : memory_(memory), members_(members), index_(index), stride_(stride(members)) {}

OneShotRounds::Card& OneShotRounds::card(std::size_t member) const {
  return reinterpret_cast<Card*>(area_memory() + sizeof(Area))[member];
}

std::byte* OneShotRounds::input(std::size_t member) const {
  return area_memory() + sizeof(Area) + members_ * sizeof(Card) + member * stride_;
}

std::uint32_t OneShotRounds::passes_at_end() const {
  return static_cast<std::uint32_t>((round_ + 1) / 2 * members_);
}

bool OneShotRounds::is_given_up(std::uint64_t state) const {
  return unpack(state).given_up == static_cast<std::uint32_t>(round_);
}

// hot
OneShotRounds::Entry OneShotRounds::enter(std::span<const std::byte> identity,
                                          std::span<const std::byte> input,
                                          bool may_be_first) {
  bool is_late = false;
  while (true) {
    ++round_;
    const Area& area = this->area();
    // Some may have left this round already: it was given up.
    const std::uint32_t before = passes_at_end() - static_cast<std::uint32_t>(members_);
    std::uint64_t state = area.state.load(std::memory_order_acquire);
    const bool is_closed = area.left.load(std::memory_order_acquire) - before >= members_;
    const bool is_empty = !is_given_up(state) && unpack(state).passed == before;
    if (is_closed || (is_empty && (is_late || !may_be_first))) {
      --round_;
      return is_late ? Entry::kGivenUp : Entry::kClosed;
    }
    if (!is_given_up(state)) {
      Card& own = card(index_);
      own.identity_bytes = identity.size();
      std::memcpy(own.identity, identity.data(), identity.size());
      std::memcpy(this->input(index_), input.data(), input.size());
    }
    if (pass(state)) {
      return Entry::kEntered;
    }
    leave();
    is_late = true;
  }
}

// Counts this rank in. False: the round is given up.
bool OneShotRounds::pass(std::uint64_t state) {
  State passed;
  do {
    passed = unpack(state);
    ++passed.passed;
  } while (!area().state.compare_exchange_weak(
      state, pack(passed), std::memory_order_acq_rel, std::memory_order_acquire));
  return !is_given_up(state);
}

// hot
OneShotRounds::View OneShotRounds::look() const {
  const std::uint64_t state = area().state.load(std::memory_order_acquire);
  if (is_given_up(state)) {
    return View::kGivenUp;
  }
  if (unpack(state).passed != passes_at_end()) {
    return View::kWaiting;
  }
  return all_mean_the_same() ? View::kMet : View::kApart;
}

bool OneShotRounds::all_mean_the_same() const {
  const Card& own = card(index_);
  for (std::size_t member = 0; member < members_; ++member) {
    const Card& other = card(member);
    if (other.identity_bytes != own.identity_bytes ||
        std::memcmp(other.identity, own.identity, own.identity_bytes) != 0) {
      return false;
    }
  }
  return true;
}

std::span<const std::byte> OneShotRounds::inputs() const {
  return {input(0), members_ * stride_};
}

bool OneShotRounds::give_up() {
  Area& area = this->area();
  std::uint64_t state = area.state.load(std::memory_order_acquire);
  State given_up;
  do {
    if (is_given_up(state)) {
      return true;
    }
    given_up = unpack(state);
    if (given_up.passed == passes_at_end()) {
      return false;
    }
    given_up.given_up = static_cast<std::uint32_t>(round_);
  } while (!area.state.compare_exchange_weak(
      state, pack(given_up), std::memory_order_acq_rel, std::memory_order_acquire));
  return true;
}

void OneShotRounds::leave() {
  area().left.fetch_add(1, std::memory_order_acq_rel);
}

}  // namespace lightcc
