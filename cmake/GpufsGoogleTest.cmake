# Provides GTest::gtest and GTest::gtest_main: from the installed library, or built from the sources
# that some distributions ship.
if(DEFINED ENV{GPUFS_GTEST_SOURCE_DIR})
  set(gpufs_gtest_source_dir "$ENV{GPUFS_GTEST_SOURCE_DIR}")
else()
  set(gpufs_gtest_source_dir "/usr/src/googletest")
endif()
set(GPUFS_GTEST_SOURCE_DIR "${gpufs_gtest_source_dir}" CACHE PATH
  "Sources of googletest, used where no built one is installed")
find_package(GTest QUIET)
if(NOT GTest_FOUND)
  if(NOT EXISTS "${GPUFS_GTEST_SOURCE_DIR}/CMakeLists.txt")
    message(FATAL_ERROR "googletest is missing: install libgtest-dev, or set GPUFS_GTEST_SOURCE_DIR to its sources.")
  endif()
  # googletest's options are the variables set here
  set(CMAKE_POLICY_DEFAULT_CMP0077 NEW)
  set(BUILD_GMOCK OFF)
  set(INSTALL_GTEST OFF)
  add_subdirectory("${GPUFS_GTEST_SOURCE_DIR}" "${PROJECT_BINARY_DIR}/googletest" EXCLUDE_FROM_ALL SYSTEM)
endif()
