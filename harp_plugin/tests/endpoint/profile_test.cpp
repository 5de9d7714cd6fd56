#include "endpoint/profile.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include <gtest/gtest.h>

namespace harp::profile_test {
namespace {

const GetVariable kUnset = [](const char*) -> const char* { return nullptr; };

GetVariable named(const std::string& path) {
  return [path](const char* name) {
    return std::string(name) == "HARP_PROFILE" ? path.c_str() : nullptr;
  };
}

std::string text_of(const Profile& profile, const std::string& name) {
  const char* const value = profile.get(name);
  return value != nullptr ? value : "(none)";
}

/// A folder that goes with the test.
class ProfileFile : public testing::Test {
 protected:
  ProfileFile()
      : folder_(std::filesystem::temp_directory_path() /
                ("harp-profile-" + std::to_string(::getpid()))) {
    std::filesystem::create_directories(folder_);
  }
  ~ProfileFile() override { std::filesystem::remove_all(folder_); }

  std::string path(const std::string& name = "profile.conf") const { return folder_ / name; }
  std::string write(const std::string& text) const {
    std::ofstream(path()) << text;
    return path();
  }
  static void expect_unreadable(const std::string& path, const std::string& why) {
    std::string error;
    EXPECT_FALSE(Profile::load(named(path), "/nowhere", &error)) << path;
    EXPECT_TRUE(error.starts_with("HARP_PROFILE=" + path + ": ")) << error;
    EXPECT_NE(error.find(why), std::string::npos) << error;
  }

 private:
  std::filesystem::path folder_;
};

TEST(Profile, lines_are_variables_comments_or_empty) {
  std::string error;
  const auto good = Profile::parse(
      "# \xc3\xa4 = nothing\n\n  HARP_MODE=thread\t\r\n\t# another\nHARP_IFNAME==eth1,eth2\n"
      "HARP_CORES=\nHARP_DPDK=net_x,a=#1 b@10.0.0.1/8",
      "p",
      &error);
  ASSERT_TRUE(good) << error;
  EXPECT_EQ(text_of(*good, "HARP_MODE"), "thread");
  EXPECT_EQ(text_of(*good, "HARP_IFNAME"), "=eth1,eth2");
  EXPECT_EQ(text_of(*good, "HARP_CORES"), "");
  EXPECT_EQ(text_of(*good, "HARP_DPDK"), "net_x,a=#1 b@10.0.0.1/8");
  EXPECT_EQ(text_of(*good, "HARP_PATHS"), "(none)");
  EXPECT_EQ(good->where("HARP_DPDK"), "p:7");
  EXPECT_EQ(good->where("HARP_PATHS"), "");
  EXPECT_EQ(good->description(), "profile p: 4 variable(s); the environment's come first");
}

TEST(Profile, a_line_that_is_something_else_is_named) {
  for (const std::string line : {"HARP_MODE",
                                 "=thread",
                                 "MODE=thread",
                                 "harp_mode=thread",
                                 "HARP_=1",
                                 "HARP_MODE =thread",
                                 "HARP_MODE.X=1",
                                 "export HARP_MODE=thread",
                                 "NCCL_NET=HARP",
                                 "{\"version\": 1}"}) {
    std::string error;
    EXPECT_FALSE(Profile::parse("# Mine\n" + line + "\n", "/etc/p", &error)) << line;
    EXPECT_EQ(error,
              "/etc/p:2: '" + line +
                  "': expected HARP_NAME=VALUE, a comment that begins with #, or an empty line");
  }
}

TEST(Profile, what_cannot_be_shown_is_refused_and_not_shown) {
  std::string error;
  EXPECT_FALSE(Profile::parse(std::string("HARP_IFNAME=eth\0\x1b[2J", 20), "p", &error));
  EXPECT_EQ(error, "p:1: 'HARP_IFNAME=eth??[2J': expected printable ASCII");
  EXPECT_FALSE(Profile::parse(std::string(5000, 'x'), "p", &error));
  EXPECT_TRUE(error.starts_with("p:1: '" + std::string(80, 'x') + "...': ")) << error;
}

TEST(Profile, a_variable_occurs_once_and_names_no_other_profile) {
  std::string error;
  EXPECT_FALSE(Profile::parse("HARP_MODE=inline\n\nHARP_MODE=thread", "p", &error));
  EXPECT_EQ(error, "p:3: 'HARP_MODE=thread': expected HARP_MODE once; line 1 has it");
  EXPECT_FALSE(Profile::parse("HARP_PROFILE=/etc/other", "p", &error));
  EXPECT_NE(error.find("HARP_PROFILE in the environment only"), std::string::npos) << error;
}

TEST(Profile, it_has_a_largest_size) {
  std::string error;
  const std::string maximum = std::string(kMaxProfileBytes - 1, '#') + "\n";
  EXPECT_TRUE(Profile::parse(maximum, "p", &error)) << error;
  EXPECT_FALSE(Profile::parse(maximum + "\n", "p", &error));
  EXPECT_EQ(error, "p: expected at most 65536 bytes");
}

TEST_F(ProfileFile, is_what_the_variable_names_and_else_the_default) {
  std::string error;
  const std::string file = write("HARP_PATHS=3\n");
  const auto by_default = Profile::load(kUnset, file, &error);
  ASSERT_TRUE(by_default) << error;
  EXPECT_EQ(text_of(*by_default, "HARP_PATHS"), "3");
  const auto by_name = Profile::load(named(file), "/nowhere", &error);
  ASSERT_TRUE(by_name) << error;
  EXPECT_EQ(by_name->where("HARP_PATHS"), file + ":1");
  for (const std::string none : {"", "none"}) {
    const auto nothing = Profile::load(named(none), file, &error);
    ASSERT_TRUE(nothing) << error;
    EXPECT_EQ(nothing->get("HARP_PATHS"), nullptr);
    EXPECT_EQ(nothing->description(), "no profile");
  }
}

TEST_F(ProfileFile, may_be_missing_where_nobody_named_it) {
  std::string error;
  EXPECT_TRUE(Profile::load(kUnset, path("gone"), &error));
  EXPECT_TRUE(Profile::load(kUnset, write("") + "/below_a_file", &error));
  EXPECT_EQ(error, "");
  expect_unreadable(path("gone"), "No such file or directory; expected a profile, or none");
}

TEST_F(ProfileFile, is_a_file_and_not_too_large) {
  std::string error;
  expect_unreadable(path("."), "expected a file");
  EXPECT_FALSE(Profile::load(kUnset, path("."), &error))
      << "a default that is there has to be read";
  ASSERT_EQ(::mkfifo(path("pipe").c_str(), 0600), 0);
  expect_unreadable(path("pipe"), "expected a file");
  EXPECT_FALSE(Profile::load(kUnset, write(std::string(kMaxProfileBytes + 1, '\n')), &error));
  EXPECT_NE(error.find("expected at most 65536 bytes"), std::string::npos) << error;
  EXPECT_FALSE(Profile::load(named(write("HARP_MODE")), "", &error));
  EXPECT_TRUE(error.starts_with(path() + ":1: 'HARP_MODE': ")) << error;
}

}  // namespace
}  // namespace harp::profile_test
