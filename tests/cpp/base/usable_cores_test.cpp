// CPU quotas in folders as cgroup file systems have them.
#include "lightcc/base/usable_cores.hpp"

#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

namespace lightcc::usable_cores_test {
namespace {

class CpuQuotaTest : public ::testing::Test {
 protected:
  CpuQuotaTest() { std::filesystem::create_directories(root_); }
  ~CpuQuotaTest() override { std::filesystem::remove_all(root_); }

  void write(const std::string& path, const std::string& text) const {
    const std::filesystem::path file = root_ / path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  }
  std::optional<double> quota_in(const std::string& membership) const {
    write("membership", membership);
    return cpu_quota(root_.string(), (root_ / "membership").string());
  }

 private:
  std::filesystem::path root_ = std::filesystem::path(::testing::TempDir()) /
                                ::testing::UnitTest::GetInstance()->current_test_info()->name();
};

TEST_F(CpuQuotaTest, IsReadFromVersion2) {
  write("pod/cpu.max", "150000 100000");
  EXPECT_EQ(quota_in("0::/pod"), 1.5);
}

TEST_F(CpuQuotaTest, IsTheLeastOfAGroupAndThoseAboveIt) {
  write("pod/cpu.max", "100000 100000");
  write("pod/worker/cpu.max", "400000 100000");
  EXPECT_EQ(quota_in("0::/pod/worker"), 1.0);
}

TEST_F(CpuQuotaTest, IsNoneWhereNoGroupHasOne) {
  write("pod/cpu.max", "max 100000");
  write("cpu/cpu.cfs_quota_us", "-1");
  write("cpu/cpu.cfs_period_us", "100000");
  EXPECT_EQ(quota_in("5:memory:/pod\n4:cpuacct,cpu:/\n0::/pod"), std::nullopt);
  EXPECT_EQ(quota_in(""), std::nullopt);
  EXPECT_EQ(quota_in("no line of a kernel"), std::nullopt);
}

TEST_F(CpuQuotaTest, IsReadFromVersion1) {
  write("cpu/pod/cpu.cfs_quota_us", "200000");
  write("cpu/pod/cpu.cfs_period_us", "50000");
  EXPECT_EQ(quota_in("7:pids:/other\n4:cpu,cpuacct:/pod\n0::/"), 4.0);
}

TEST_F(CpuQuotaTest, IsThatOfTheRootWhereAContainerDoesNotSeeItsGroup) {
  write("cpu.max", "50000 100000");
  EXPECT_EQ(quota_in("0::/../../kubepods/pod"), 0.5);
}

TEST(UsableCoresTest, AreAtLeastOne) {
  EXPECT_GE(usable_cores(), 1);
}

}  // namespace
}  // namespace lightcc::usable_cores_test
