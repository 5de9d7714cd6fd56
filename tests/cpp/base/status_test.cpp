#include "lightcc/base/status.hpp"

#include <cerrno>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include <gtest/gtest.h>

namespace lightcc::status_test {
namespace {

TEST(Status, default_is_ok_and_says_nothing) {
  const Status status;
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(status.code(), ErrorCode::kOk);
  EXPECT_EQ(status.rank(), -1);
  EXPECT_TRUE(status.message().empty());
  EXPECT_TRUE(Status::ok_status().ok());
}

TEST(Status, error_keeps_code_message_and_rank) {
  const Status status(ErrorCode::kPeerFailed, "rank 3 hung up", 3);
  EXPECT_FALSE(status.ok());
  EXPECT_EQ(status.code(), ErrorCode::kPeerFailed);
  EXPECT_EQ(status.rank(), 3);
  EXPECT_EQ(status.message(), "rank 3 hung up");
}

TEST(Status, make_error_formats_texts_of_any_length) {
  EXPECT_EQ(make_error(ErrorCode::kMismatch, "%s has %d", "x", 5).message(), "x has 5");
  const std::string text(100000, 'y');
  EXPECT_EQ(make_error(ErrorCode::kMismatch, "%s", text.c_str()).message(), text);
  EXPECT_EQ(make_error(ErrorCode::kMismatch, "%s", "").message(), "");
}

TEST(Status, make_system_error_appends_the_reason) {
  const Status status = make_system_error(ErrorCode::kSystem, ENOENT, "opening %s", "a");
  EXPECT_EQ(status.code(), ErrorCode::kSystem);
  EXPECT_EQ(status.message(), "opening a: No such file or directory");
}

TEST(Status, every_code_has_its_own_name) {
  std::set<std::string> names;
  for (std::uint8_t code = 0; code <= static_cast<std::uint8_t>(ErrorCode::kInternal); ++code) {
    names.insert(error_code_name(static_cast<ErrorCode>(code)));
  }
  EXPECT_EQ(names.size(), static_cast<std::size_t>(ErrorCode::kInternal) + 1);
  EXPECT_EQ(names.count("unknown error"), 0U);
  EXPECT_STREQ(error_code_name(static_cast<ErrorCode>(200)), "unknown error");
}

Result<int> half(int number) {
  if (number % 2 != 0) {
    return make_error(ErrorCode::kInvalidArgument, "%d is odd", number);
  }
  return number / 2;
}

Result<int> quarter(int number) {
  LIGHTCC_ASSIGN_OR_RETURN(const int halved, half(number));
  return half(halved);
}

Status quarter_only(int number) {
  LIGHTCC_RETURN_IF_ERROR(quarter(number).status());
  return {};
}

TEST(Result, holds_a_value_or_the_reason) {
  const Result<int> good = half(4);
  ASSERT_TRUE(good.ok());
  EXPECT_EQ(good.value(), 2);
  EXPECT_TRUE(good.status().ok());
  const Result<int> bad = half(3);
  EXPECT_FALSE(bad.ok());
  EXPECT_EQ(bad.status().message(), "3 is odd");
}

TEST(Result, macros_pass_the_first_error_on_unchanged) {
  EXPECT_EQ(quarter(8).value(), 2);
  EXPECT_EQ(quarter(7).status().message(), "7 is odd");
  EXPECT_EQ(quarter(6).status().message(), "3 is odd");
  EXPECT_TRUE(quarter_only(8).ok());
  EXPECT_EQ(quarter_only(6).code(), ErrorCode::kInvalidArgument);
}

TEST(Result, moves_values_that_cannot_be_copied) {
  Result<std::unique_ptr<int>> result(std::make_unique<int>(5));
  ASSERT_TRUE(result.ok());
  const std::unique_ptr<int> owned = std::move(result).value();
  EXPECT_EQ(*owned, 5);
}

}  // namespace
}  // namespace lightcc::status_test
