// The store protocol's frames byte by byte, and the bodies that must be refused.
#include "lightcc/wire/store_messages.hpp"

#include <string>

#include <gtest/gtest.h>

#include "doubles/shorthand.hpp"

namespace lightcc::store_messages_test {
namespace {

std::span<const std::byte> body_of(const Bytes& frame) {
  const auto head = std::span(frame).first(kStoreFrameHeadBytes);
  EXPECT_EQ(decode_store_body_bytes(head).value(), frame.size() - kStoreFrameHeadBytes);
  return std::span(frame).subspan(kStoreFrameHeadBytes);
}

void expect_request(const StoreRequest& request, std::string_view golden_hex) {
  Bytes frame;
  encode_store_request(request, frame);
  EXPECT_EQ(frame, from_hex(golden_hex));
  const Bytes golden = from_hex(golden_hex);
  const auto decoded = decode_store_request(body_of(golden));
  ASSERT_TRUE(decoded.ok()) << decoded.status().message();
  EXPECT_EQ(decoded.value(), request);
}

void expect_answer(const StoreAnswer& answer, std::string_view golden_hex) {
  Bytes frame;
  encode_store_answer(answer, frame);
  EXPECT_EQ(frame, from_hex(golden_hex));
  const Bytes golden = from_hex(golden_hex);
  const auto decoded = decode_store_answer(body_of(golden));
  ASSERT_TRUE(decoded.ok()) << decoded.status().message();
  EXPECT_EQ(decoded.value(), answer);
}

TEST(StoreMessagesTest, requests_are_the_documented_bytes) {
  expect_request({StoreRequest::Kind::kSet, "a/b", bytes_of("xyz")},
                 "09000000"
                 "01"
                 "03612f62"
                 "0378797a");
  expect_request({StoreRequest::Kind::kSet, "k", {}},
                 "04000000"
                 "01"
                 "016b"
                 "00");
  expect_request({StoreRequest::Kind::kGet, "a/b", {}},
                 "05000000"
                 "02"
                 "03612f62");
  expect_request({StoreRequest::Kind::kRemovePrefix, "", {}},
                 "02000000"
                 "03"
                 "00");
  expect_request({StoreRequest::Kind::kJoin, "w/", bytes_of("will")},
                 "09000000"
                 "04"
                 "02772f"
                 "0477696c6c");
  expect_request({StoreRequest::Kind::kFail, "w/", bytes_of("why")},
                 "08000000"
                 "05"
                 "02772f"
                 "03776879");
  expect_request({StoreRequest::Kind::kLeave, "w/", {}},
                 "04000000"
                 "06"
                 "02772f");
  expect_request({StoreRequest::Kind::kLeaveLast, "w/", {}},
                 "04000000"
                 "07"
                 "02772f");
  expect_request({StoreRequest::Kind::kCompareAndSet, "k", bytes_of("new"), bytes_of("old")},
                 "0c000000"
                 "08"
                 "016b"
                 "036e6577"
                 "01"
                 "036f6c64");
  expect_request({StoreRequest::Kind::kCompareAndSet, "k", {}, std::nullopt},
                 "05000000"
                 "08"
                 "016b"
                 "00"
                 "00");
  expect_request({StoreRequest::Kind::kWatch, "p/", {}, std::nullopt, 0x0102},
                 "0c000000"
                 "09"
                 "02702f"
                 "0201000000000000");
  StoreRequest gather{StoreRequest::Kind::kGather, "p", bytes_of("ab")};
  gather.index = 1;
  gather.count = 3;
  expect_request(gather,
                 "0e000000"
                 "0a"
                 "0170"
                 "026162"
                 "01000000"
                 "03000000");
}

TEST(StoreMessagesTest, a_failure_is_the_documented_bytes) {
  const Status failure(ErrorCode::kPeerFailed, "gone", 7);
  const Bytes golden = from_hex(
      "03"
      "07000000"
      "04676f6e65");
  EXPECT_EQ(encode_failure(failure), golden);
  const Status decoded = decode_failure(golden);
  EXPECT_EQ(decoded.code(), ErrorCode::kPeerFailed);
  EXPECT_EQ(decoded.rank(), 7);
  EXPECT_EQ(decoded.message(), "gone");
}

TEST(StoreMessagesTest, what_is_no_failure_is_one_all_the_same) {
  for (const std::string_view bytes : {"",
                                       "00070000000161",
                                       "09070000000161",
                                       "03feffffff0161",
                                       "030700000002",
                                       "0307000000016100"}) {
    const Status decoded = decode_failure(from_hex(bytes));
    EXPECT_EQ(decoded.code(), ErrorCode::kPeerFailed) << bytes;
    EXPECT_NE(decoded.message().find("malformed"), std::string::npos) << bytes;
  }
}

TEST(StoreMessagesTest, a_failure_with_a_long_text_fits) {
  const Bytes bytes = encode_failure(Status(ErrorCode::kSystem, std::string(100'000, 't'), 3));
  EXPECT_LE(bytes.size(), kMaxStoreFailureBytes);
  EXPECT_EQ(decode_failure(bytes).message().size(), kMaxStoreFailureTextBytes);
}

TEST(StoreMessagesTest, answers_are_the_documented_bytes) {
  expect_answer({}, "0100000001");
  expect_answer({StoreAnswer::Kind::kValue, bytes_of("xyz"), ErrorCode::kInvalidArgument, {}},
                "05000000"
                "02"
                "0378797a");
  expect_answer({StoreAnswer::Kind::kRefused, {}, ErrorCode::kSystem, "full"},
                "07000000"
                "03"
                "06"
                "0466756c6c");
  expect_answer({StoreAnswer::Kind::kFailed, bytes_of("why"), ErrorCode::kInvalidArgument, {}},
                "05000000"
                "04"
                "03776879");
  expect_answer({StoreAnswer::Kind::kAbsent, {}, ErrorCode::kInvalidArgument}, "0100000005");
  StoreAnswer view{StoreAnswer::Kind::kView, {}, ErrorCode::kInvalidArgument};
  view.view = {3, {{"a", bytes_of("x")}, {"b", {}}}};
  expect_answer(view,
                "11000000"
                "06"
                "0300000000000000"
                "02"
                "0161"
                "0178"
                "0162"
                "00");
}

TEST(StoreMessagesTest, a_value_head_and_the_value_make_the_whole_frame) {
  const StoreAnswer answer{
      StoreAnswer::Kind::kValue, Bytes(300, std::byte{9}), ErrorCode::kInvalidArgument, {}};
  Bytes whole;
  encode_store_answer(answer, whole);
  Bytes pieces;
  encode_store_value_head(answer.value.size(), pieces);
  pieces.insert(pieces.end(), answer.value.begin(), answer.value.end());
  EXPECT_EQ(pieces, whole);
}

TEST(StoreMessagesTest, the_largest_messages_fit) {
  StoreRequest request{StoreRequest::Kind::kSet,
                       std::string(kMaxStoreKeyBytes, 'k'),
                       Bytes(kMaxStoreValueBytes, std::byte{1})};
  ASSERT_TRUE(check_store_key(request.key).ok());
  ASSERT_TRUE(check_store_value(request.value.size()).ok());
  Bytes frame;
  encode_store_request(request, frame);
  const auto decoded = decode_store_request(body_of(frame));
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded.value(), request);
  EXPECT_FALSE(check_store_key(std::string(kMaxStoreKeyBytes + 1, 'k')).ok());
  EXPECT_FALSE(check_store_value(kMaxStoreValueBytes + 1).ok());
}

TEST(StoreMessagesTest, a_long_text_is_cut) {
  Bytes frame;
  encode_store_answer({StoreAnswer::Kind::kRefused, {}, ErrorCode::kSystem, std::string(5000, 't')},
                      frame);
  const auto decoded = decode_store_answer(body_of(frame));
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(decoded->text.size(), kMaxStoreTextBytes);
}

TEST(StoreMessagesTest, frame_lengths_are_checked) {
  EXPECT_FALSE(decode_store_body_bytes(from_hex("00000000")).ok());
  EXPECT_FALSE(decode_store_body_bytes(from_hex("ffffffff")).ok());
  EXPECT_FALSE(decode_store_body_bytes(from_hex("010000")).ok());
  Bytes head;
  ByteWriter(head).number(static_cast<std::uint32_t>(kMaxStoreBodyBytes));
  EXPECT_EQ(decode_store_body_bytes(head).value(), kMaxStoreBodyBytes);
  head.clear();
  ByteWriter(head).number(static_cast<std::uint32_t>(kMaxStoreBodyBytes + 1));
  EXPECT_FALSE(decode_store_body_bytes(head).ok());
}

TEST(StoreMessagesTest, malformed_bodies_are_refused) {
  for (const std::string_view body : {"",
                                      "00",
                                      "04016b",
                                      "06",
                                      "07016b00",
                                      "08016b",
                                      "08016b00",
                                      "08016b0002",
                                      "08016b000101",
                                      "08016b000000",
                                      "09016b",
                                      "09016b00000000000000",
                                      "09016b000000000000000000",
                                      "02",
                                      "0202",
                                      "020261",
                                      "02016b00",
                                      "01016b",
                                      "01016b05787878",
                                      "01016b0178ff",
                                      "02ffffffffffffffffffff01",
                                      "0281020000"}) {
    const auto decoded = decode_store_request(from_hex(body));
    ASSERT_FALSE(decoded.ok()) << body;
    EXPECT_EQ(decoded.status().code(), ErrorCode::kPeerFailed);
  }
  for (const std::string_view body : {"",
                                      "00",
                                      "0100",
                                      "02",
                                      "020278",
                                      "03",
                                      "030600ff",
                                      "030001",
                                      "030301",
                                      "0500",
                                      "06",
                                      "0603000000000000",
                                      "06030000000000000001",
                                      "060300000000000000ffffffffffffffffff01",
                                      "06030000000000000000ff",
                                      "04",
                                      "040278",
                                      "07",
                                      "02ffffffff7f"}) {
    const auto decoded = decode_store_answer(from_hex(body));
    ASSERT_FALSE(decoded.ok()) << body;
    EXPECT_EQ(decoded.status().code(), ErrorCode::kPeerFailed);
  }
}

TEST(StoreMessagesTest, every_truncation_is_refused) {
  Bytes frame;
  encode_store_request({StoreRequest::Kind::kSet, "key", bytes_of("value")}, frame);
  const auto body = body_of(frame);
  for (std::size_t length = 0; length < body.size(); ++length) {
    EXPECT_FALSE(decode_store_request(body.first(length)).ok()) << length;
  }
}

}  // namespace
}  // namespace lightcc::store_messages_test
