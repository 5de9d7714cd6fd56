// Control frames byte by byte, and the bytes that must be refused: cheaply, and with kPeerFailed.
#include "lightcc/wire/control_messages.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>
#include <random>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "doubles/shorthand.hpp"

namespace {

// Bytes asked for since the last reset: how the tests see what a hostile count costs.
std::size_t allocated_bytes = 0;

}  // namespace

// ThreadSanitizer's runtime defines these itself; there, nothing is counted.
#if !defined(LIGHTCC_TEST_TSAN)
// Not inlined: gcc would see free() meet the library's operator new, and warn.
[[gnu::noinline]] void* operator new(std::size_t bytes) {
  allocated_bytes += bytes;
  if (void* memory = std::malloc(bytes == 0 ? 1 : bytes)) {
    return memory;
  }
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, std::size_t /*bytes*/) noexcept {
  std::free(memory);
}
#endif

namespace lightcc::control_messages_test {
namespace {

Bytes encoded(const Frame& frame) {
  Bytes bytes;
  encode_frame(frame, bytes);
  return bytes;
}

std::span<const std::byte> payload_of(const Bytes& frame) {
  std::uint32_t length = 0;
  std::memcpy(&length, frame.data(), sizeof(length));
  EXPECT_EQ(length, frame.size() - sizeof(length));
  return std::span(frame).subspan(sizeof(length));
}

void expect_golden(const Frame& frame, std::string_view golden_hex) {
  const Bytes golden = from_hex(golden_hex);
  EXPECT_EQ(encoded(frame), golden);
  const auto decoded = decode_frame(payload_of(golden));
  ASSERT_TRUE(decoded.ok()) << decoded.status().message();
  EXPECT_EQ(decoded.value(), frame);
}

void expect_refused(std::span<const std::byte> payload) {
  allocated_bytes = 0;
  const auto decoded = decode_frame(payload);
  EXPECT_LT(allocated_bytes, std::size_t{1} << 20);
  ASSERT_FALSE(decoded.ok());
  EXPECT_EQ(decoded.status().code(), ErrorCode::kPeerFailed);
  EXPECT_FALSE(decoded.status().message().empty());
}

void expect_refused(std::string_view payload_hex) {
  SCOPED_TRACE(payload_hex);
  expect_refused(from_hex(payload_hex));
}

Signature alltoall_signature() {
  Signature s;
  s.op = OpType::kAlltoall;
  s.process_set = 5;
  s.postscale = 0.5;
  s.name = "g";
  s.shape = {6};
  return s;
}

Signature broadcast_signature() {
  Signature s;
  s.op = OpType::kBroadcast;
  s.process_set = 1;
  s.root_or_peer = 1;
  s.name = "b";
  s.group = "gg";
  s.group_size = 2;
  s.memory = MemoryKind::kCuda;
  s.is_automatic = true;
  s.compression = CompressionSpec{
      .ratio = 0.25, .momentum = 0.5, .warmup_steps = 5, .fp16 = true, .exact = true};
  s.steps_ahead = -2;
  s.fusion = {FusionRule::kAuto, 300};
  return s;
}

Signature send_signature() {
  Signature s;
  s.op = OpType::kSend;
  s.root_or_peer = 3;
  s.name = "s";
  s.is_automatic = true;
  s.mailbox = "3.c";
  return s;
}

constexpr std::string_view kOne = "000000000000f03f";
constexpr std::string_view kHalf = "000000000000e03f";

std::vector<Report> reports() {
  return {{1, ReadySlot{300}},
          {8, ReadySlot{300}, 130},
          {0, Leave{}},
          {2, Request{alltoall_signature(), {4, 2}, {}, "no"}}};
}

std::vector<Command> commands() {
  Execute execute;
  execute.sequence = 300;
  execute.process_set = 1;
  execute.lane = 2;
  execute.tensors.push_back({7, std::nullopt, {}});
  execute.tensors.push_back({kNoSlot, broadcast_signature(), {3, 4}});
  return {execute,
          FailOperation{0, "x", ErrorCode::kMismatch, "no"},
          AddProcessSet{3, "a", {0, 2}},
          RemoveProcessSet{3, "r"},
          AllJoined{2},
          ShutDown{-1},
          MatchReceive{300, "r", "s", 2}};
}

std::vector<Frame> one_of_each() {
  return {reports(), commands(), WorldError{ErrorCode::kTimeout, 3, "late"}, Heartbeat{}};
}

TEST(ControlMessagesTest, reports_are_the_documented_bytes) {
  expect_golden(reports(),
                std::string("4f000000"
                            "01"
                            "04"
                            "0102ac02"      // Rank 1 is ready for slot 300.
                            "08828201ac02"  // So are all below rank 8, rank 130 last.
                            "0003"          // Rank 0 leaves.
                            "0201"          // Rank 2 requests:
                            "0307000105ffffffff") +
                    std::string(kOne) + std::string(kHalf) +
                    "016700"
                    "0000"
                    "0000"
                    "010600000000000000"
                    "00"  // Not compressed.
                    "0204000000000000000200000000000000"
                    "00"
                    "026e6f");  // It cannot.
}

TEST(ControlMessagesTest, commands_are_the_documented_bytes) {
  expect_golden(commands(),
                std::string("91000000"
                            "02"
                            "07"
                            "01ac02010202"
                            "070000000000"  // Slot 7, as last time.
                            "ffffffff01"    // No slot, in full:
                            "020701010101000000") +
                    std::string(kOne) + std::string(kOne) +
                    "016201"
                    "02676702"
                    "02ac02"
                    "00"
                    "0103000000000000d03f000000000000e03f05"  // Top-k,
                    "feffffffffffffff"                        // two steps behind.
                    "0203000000000000000400000000000000"
                    "020001780202"
                    "6e6f"
                    "03030161020000000002000000"
                    "04030172"
                    "0502000000"
                    "06ffffffff"
                    "07ac020172017302000000");
}

TEST(ControlMessagesTest, inputs_follow_what_is_asked_for) {
  const Bytes data = from_hex("aabbcc");
  expect_golden(std::vector<Report>{{1, ReadySlot{300}, -1, {{1, data}}},
                                    {8, ReadySlot{300}, 130, {{130, data}, {8, data}}}},
                "1e000000"
                "01"
                "02"
                "0142ac02"      // Rank 1 is ready for slot 300,
                "010103aabbcc"  // with its input.
                "08c28201ac02"  // So are all below rank 8,
                "02"            // of which two have theirs.
                "820103aabbcc"
                "0803aabbcc");
  for (const Request& request : {Request{alltoall_signature(), {4, 2}, {}}, Request{}}) {
    const Frame frame = std::vector<Report>{{2, request, -1, {{2, data}}}};
    const auto decoded = decode_frame(payload_of(encoded(frame)));
    ASSERT_TRUE(decoded.ok()) << decoded.status().message();
    EXPECT_EQ(decoded.value(), frame);
  }
}

TEST(ControlMessagesTest, results_follow_their_tensor) {
  Execute execute;
  execute.sequence = 1;
  execute.tensors.push_back({7, std::nullopt, {}, from_hex("aabbcc")});
  expect_golden(std::vector<Command>{execute},
                "11000000"
                "02"
                "01"
                "01010000"
                "01"
                "070000000200"  // Slot 7, as last time,
                "03aabbcc");    // is this.
  execute.tensors.front().signature = broadcast_signature();
  const Frame in_full = std::vector<Command>{execute};
  const auto decoded = decode_frame(payload_of(encoded(in_full)));
  ASSERT_TRUE(decoded.ok()) << decoded.status().message();
  EXPECT_EQ(decoded.value(), in_full);
}

TEST(ControlMessagesTest, inputs_and_results_that_are_none_are_refused) {
  expect_refused("01010142ac0200");                      // No input, where some are said to come.
  expect_refused("01010142ac02010103aabb");              // Cut off.
  expect_refused("010100430101");                        // A rank that leaves has none.
  expect_refused("0201010100000107000000020000");        // An empty result.
  expect_refused("0201010100000107000000020004aabbcc");  // Cut off.
  expect_refused("0201010100000107000000040000");        // An unknown flag.
  expect_refused("02010101000001ffffffff020001aa");      // A result of no slot.
  std::vector<Report> large{{1, ReadySlot{3}, -1, {{1, Bytes(kMaxInlineBytes)}}}};
  EXPECT_TRUE(decode_frame(payload_of(encoded(large))).ok());
  large.front().inputs.front().data.emplace_back();
  expect_refused(payload_of(encoded(large)));
}

TEST(ControlMessagesTest, transfers_end_with_their_mailbox) {
  expect_golden(std::vector<Report>{{1, Request{send_signature(), {}, {}}}},
                std::string("2d000000"
                            "01"
                            "01"
                            "0101"
                            "050700010003000000") +
                    std::string(kOne) + std::string(kOne) +
                    "017301"
                    "0000"
                    "0000"
                    "00"
                    "00"
                    "03332e63"
                    "000000");
}

TEST(ControlMessagesTest, compressors_are_the_documented_bytes) {
  for (const auto& [spec, byte] :
       {std::pair(std::optional<CompressionSpec>(), "00"),
        std::pair(std::optional(CompressionSpec{.ratio = 1.0, .momentum = 0.5, .two_bits = true}),
                  "0104000000000000f03f000000000000e03f00"),
        std::pair(std::optional(CompressionSpec{.compressor = Compressor::kInt8}), "0200"),
        std::pair(std::optional(CompressionSpec{.compressor = Compressor::kInt4,
                                                .segments = {{300, 4}, {5, 0}}}),
                  "0302ac02040500")}) {
    Signature s = alltoall_signature();
    s.compression = spec;
    const std::string ahead = spec ? "2c01000000000000" : "";
    s.steps_ahead = spec ? 300 : 0;
    const auto bytes = static_cast<unsigned>(0x40 + (std::strlen(byte) + ahead.size()) / 2);
    const std::string length = {"0123456789abcdef"[bytes / 16],
                                "0123456789abcdef"[bytes % 16],
                                '0',
                                '0',
                                '0',
                                '0',
                                '0',
                                '0'};
    expect_golden(std::vector<Report>{{2, Request{s, {4, 2}, {}}}},
                  length +
                      std::string("01"
                                  "01"
                                  "0201"
                                  "0307000105ffffffff") +
                      std::string(kOne) + std::string(kHalf) +
                      "016700"
                      "0000"
                      "0000"
                      "010600000000000000" +
                      byte + ahead +
                      "0204000000000000000200000000000000"
                      "00"
                      "00");
  }
}

TEST(ControlMessagesTest, errors_and_heartbeats_are_the_documented_bytes) {
  expect_golden(WorldError{ErrorCode::kTimeout, 3, "late"},
                "0b00000003040300000004"
                "6c617465");
  expect_golden(Heartbeat{}, "020000000400");
  expect_golden(Heartbeat{true}, "020000000401");
}

TEST(ControlMessagesTest, every_variant_survives_a_round_trip_with_extreme_values) {
  Signature extreme;
  extreme.op = OpType::kRemoveProcessSet;
  extreme.dtype = DataType::kBfloat16;
  extreme.memory = MemoryKind::kCuda;
  extreme.is_automatic = true;
  extreme.reduce_op = ReduceOp::kProduct;
  extreme.process_set = std::numeric_limits<std::uint32_t>::max();
  extreme.root_or_peer = std::numeric_limits<std::int32_t>::min();
  extreme.prescale = -std::numeric_limits<double>::infinity();
  extreme.postscale = std::numeric_limits<double>::denorm_min();
  extreme.name = std::string(kMaxNameBytes, '\0');
  extreme.group = std::string(kMaxNameBytes, 'g');
  extreme.group_size = std::numeric_limits<std::uint32_t>::max();
  extreme.fusion = {FusionRule::kPlanned, std::numeric_limits<std::uint64_t>::max()};
  extreme.shape.assign(kMaxDimensions, std::numeric_limits<std::int64_t>::min());
  Execute execute;
  execute.sequence = std::numeric_limits<std::uint64_t>::max();
  execute.process_set = execute.lane = std::numeric_limits<std::uint32_t>::max();
  execute.tensors.push_back({0xfffffffe, extreme, std::vector<std::int64_t>(3000, -1)});
  Signature receive = extreme;
  receive.op = OpType::kRecv;
  receive.mailbox = std::string(kMaxNameBytes, 'c');
  execute.tensors.push_back({kNoSlot, receive, {}});
  const std::string long_name(kMaxNameBytes, 'n');
  const std::vector<std::int32_t> many(5000, std::numeric_limits<std::int32_t>::max());
  const std::vector<Frame> frames = {
      std::vector<Report>{},
      std::vector<Command>{},
      std::vector<Report>{{0xffffffff, Request{extreme, std::vector<std::int64_t>(999, -7), many}},
                          {0xffffffff, ReadySlot{kNoSlot}},
                          {0xffffffff,
                           Request{extreme, {}, {}, std::string(kMaxObjectionBytes, 'o')},
                           std::numeric_limits<std::int32_t>::max()},
                          {0, Leave{}}},
      std::vector<Command>{execute,
                           FailOperation{9, long_name, ErrorCode::kInternal, ""},
                           AddProcessSet{9, long_name, many},
                           RemoveProcessSet{9, long_name},
                           AllJoined{-1},
                           ShutDown{std::numeric_limits<std::int32_t>::max()},
                           MatchReceive{9, long_name, long_name, -1}},
      WorldError{ErrorCode::kInternal, -1, ""},
  };
  for (const Frame& frame : frames) {
    const Bytes bytes = encoded(frame);
    const auto decoded = decode_frame(payload_of(bytes));
    ASSERT_TRUE(decoded.ok()) << decoded.status().message();
    EXPECT_EQ(decoded.value(), frame);
  }
}

TEST(ControlMessagesTest, encoding_appends) {
  Bytes bytes = encoded(Heartbeat{});
  encode_frame(WorldError{ErrorCode::kTimeout, 3, "late"}, bytes);
  const Bytes first = encoded(Heartbeat{});
  const Bytes second = encoded(WorldError{ErrorCode::kTimeout, 3, "late"});
  Bytes both = first;
  both.insert(both.end(), second.begin(), second.end());
  EXPECT_EQ(bytes, both);
}

TEST(ControlMessagesTest, an_error_text_is_cut_to_what_the_reader_accepts) {
  const Bytes bytes = encoded(WorldError{ErrorCode::kTimeout, 3, std::string(100'000, 'e')});
  const auto decoded = decode_frame(payload_of(bytes));
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(std::get<WorldError>(decoded.value()).message, std::string(65536, 'e'));
}

TEST(ControlMessagesTest, a_frame_cut_anywhere_is_refused) {
  for (const Frame& frame : one_of_each()) {
    const Bytes bytes = encoded(frame);
    const auto payload = payload_of(bytes);
    for (std::size_t length = 0; length < payload.size(); ++length) {
      SCOPED_TRACE(length);
      expect_refused(payload.first(length));
    }
  }
}

TEST(ControlMessagesTest, bytes_behind_a_frame_are_refused) {
  for (const Frame& frame : one_of_each()) {
    Bytes bytes = encoded(frame);
    bytes.push_back(std::byte{0});
    expect_refused(std::span<const std::byte>(bytes).subspan(4));
  }
}

TEST(ControlMessagesTest, unknown_kinds_are_refused) {
  expect_refused("00");
  expect_refused("05");
  expect_refused("ff");
  expect_refused("01010000");        // A report of kind 0,
  expect_refused("01010004");        // and 4.
  expect_refused("020100");          // A command of kind 0,
  expect_refused("020109");          // and 9.
  expect_refused("03000000000000");  // An error that is none,
  expect_refused("03090000000000");  // and one not known.
  expect_refused(
      "0201020001780002"
      "6e6f");  // An operation that failed with "ok",
  expect_refused(
      "0201020001780902"
      "6e6f");  // or for a reason not known.
}

TEST(ControlMessagesTest, enumerations_out_of_range_are_refused) {
  Bytes good = encoded(std::vector<Report>{{2, Request{alltoall_signature(), {}, {}}}});
  constexpr std::size_t kSignatureAt = 4 + 1 + 1 + 1 + 1;
  for (const auto& [offset, count] : {std::pair<std::size_t, int>{0, kOpTypeCount},
                                      {1, kDataTypeCount},
                                      {2, kMemoryKindCount},
                                      {3, kReduceOpCount}}) {
    for (const int value : {count, 255}) {
      Bytes bad = good;
      bad[kSignatureAt + offset] = static_cast<std::byte>(value);
      expect_refused(std::span<const std::byte>(bad).subspan(4));
    }
  }
}

TEST(ControlMessagesTest, reports_of_a_subtree_that_make_no_sense_are_refused) {
  expect_refused("01010883820f");          // Nobody leaves for others.
  expect_refused("0101088280808080082c");  // A last rank of 2^31.
}

TEST(ControlMessagesTest, hostile_counts_are_refused_and_cost_nothing) {
  constexpr std::string_view kHuge[] = {"ffffffff0f", "ffffffffffffffffff01", "ffffffff07"};
  for (const std::string_view count : kHuge) {
    const std::string hex(count);
    expect_refused("01" + hex);  // Reports.
    expect_refused("02" + hex);  // Commands.
    expect_refused(
        "0201"
        "01000000" +
        hex);  // Tensors.
    expect_refused(
        "0201"
        "01000000"
        "01"
        "00000000"
        "00" +
        hex);  // Per member.
    expect_refused(
        "0201"
        "0300"
        "00" +
        hex);  // Ranks.
    expect_refused(
        "0201"
        "0400" +
        hex);  // A name.
    expect_refused(
        "03"
        "04"
        "00000000" +
        hex);  // A text.
  }
  // A count that the bytes could just hold, of elements larger than a byte.
  Bytes many = from_hex("02010300008080c002");  // 5 Mi ranks announced,
  many.resize((std::size_t{5} << 20) + 9);      // 1.25 Mi delivered.
  allocated_bytes = 0;
  EXPECT_FALSE(decode_frame(many).ok());
  EXPECT_LT(allocated_bytes, 4 * many.size());
}

TEST(ControlMessagesTest, numbers_beyond_32_bits_are_refused_not_cut) {
  expect_refused(
      "0101"
      "8180808010"
      "03");  // Rank 2^32 + 1 leaves.
  expect_refused(
      "0101"
      "00"
      "02"
      "8780808010");  // Slot 2^32 + 7.
  expect_refused(
      "0201"
      "04"
      "8180808010"
      "00");  // Process set 2^32 + 1.
}

TEST(ControlMessagesTest, limits_of_names_dimensions_and_texts_hold) {
  Signature s = alltoall_signature();
  s.name.assign(kMaxNameBytes + 1, 'n');
  expect_refused(payload_of(encoded(std::vector<Report>{{0, Request{s, {}, {}}}})));
  s = alltoall_signature();
  s.group.assign(kMaxNameBytes + 1, 'n');
  expect_refused(payload_of(encoded(std::vector<Report>{{0, Request{s, {}, {}}}})));
  s = send_signature();
  s.mailbox.assign(kMaxNameBytes + 1, 'n');
  expect_refused(payload_of(encoded(std::vector<Report>{{0, Request{s, {}, {}}}})));
  s = alltoall_signature();
  const std::string objection(kMaxObjectionBytes + 1, 'o');
  expect_refused(payload_of(encoded(std::vector<Report>{{0, Request{s, {}, {}, objection}}})));
  s.shape.assign(kMaxDimensions + 1, 1);
  expect_refused(payload_of(encoded(std::vector<Report>{{0, Request{s, {}, {}}}})));
}

TEST(ControlMessagesTest, a_tensor_without_slot_and_signature_is_refused) {
  expect_refused(
      "0201"
      "01000000"
      "01"
      "ffffffff"
      "00"
      "00");
  expect_refused(
      "0201"
      "01000000"
      "01"
      "07000000"
      "02"
      "00");
}

TEST(ControlMessagesTest, damaged_frames_are_refused_or_decode_to_what_encodes_again) {
  std::mt19937 random(20260);
  for (const Frame& frame : one_of_each()) {
    const Bytes good = encoded(frame);
    for (int round = 0; round < 3000; ++round) {
      Bytes bad(good.begin() + 4, good.end());
      for (int flips = 0; flips < 1 + round % 3; ++flips) {
        bad[random() % bad.size()] ^= static_cast<std::byte>(1U << (random() % 8));
      }
      const auto decoded = decode_frame(bad);
      if (decoded.ok()) {
        const Bytes again = encoded(decoded.value());
        const auto twice = decode_frame(payload_of(again));
        ASSERT_TRUE(twice.ok());
        // Bytes, not values: a factor may be not a number.
        ASSERT_EQ(encoded(twice.value()), again);
      }
    }
  }
}

}  // namespace
}  // namespace lightcc::control_messages_test
