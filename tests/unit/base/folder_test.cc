#include "base/folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "support/catch.h"
#include "support/temp_dir.h"

namespace moert {
namespace {

using Names = std::vector<std::string>;

void MakeFolder(const std::string& path) { REQUIRE(::mkdir(path.c_str(), 0700) == 0); }

TEST_CASE("the names in a folder are in order") {
  const test::TempDir dir;
  CHECK(FolderNames(dir.path()).value() == Names{});
  test::WriteFile(dir / "b", "");
  test::WriteFile(dir / ".hidden", "");
  MakeFolder(dir / "a");
  CHECK(FolderNames(dir.path()).value() == Names{".hidden", "a", "b"});
}

TEST_CASE("what is no folder has no names") {
  const test::TempDir dir;
  test::WriteFile(dir / "file", "");
  CHECK(FolderNames(dir / "missing").status().code() == absl::StatusCode::kNotFound);
  CHECK_FALSE(FolderNames(dir / "file").ok());
}

TEST_CASE("a tree is removed whole") {
  const test::TempDir dir;
  MakeFolder(dir / "tree");
  MakeFolder(dir / "tree/inner");
  for (int i = 0; i < 300; ++i) test::WriteFile(dir / "tree/inner/" + std::to_string(i), "x");
  test::WriteFile(dir / "tree/file", "x");
  test::WriteFile(dir / "beside", "x");
  CHECK(RemoveTree(dir / "tree") == 0);
  CHECK(FolderNames(dir.path()).value() == Names{"beside"});
  CHECK(RemoveTree(dir / "beside") == 0);
  CHECK(RemoveTree(dir / "never there") == 0);
  CHECK(FolderNames(dir.path()).value() == Names{});
}

TEST_CASE("links are removed and what they name stays") {
  const test::TempDir dir;
  MakeFolder(dir / "other");
  test::WriteFile(dir / "other/file", "x");
  MakeFolder(dir / "tree");
  REQUIRE(::symlink((dir / "other").c_str(), (dir / "tree/link").c_str()) == 0);
  REQUIRE(::symlink((dir / "other").c_str(), (dir / "link").c_str()) == 0);
  CHECK(RemoveTree(dir / "tree") == 0);
  CHECK(RemoveTree(dir / "link") == 0);
  CHECK(FolderNames(dir.path()).value() == Names{"other"});
  CHECK(FolderNames(dir / "other").value() == Names{"file"});
}

TEST_CASE("what cannot be removed is an error") {
  const test::TempDir dir;
  test::WriteFile(dir / "file", "x");
  CHECK(RemoveTree(dir / "file/inner") == ENOTDIR);
}

}  // namespace
}  // namespace moert
