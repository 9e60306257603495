# Installs the CMake package: headers, library, and gpufsConfig.cmake for find_package(gpufs).
include(CMakePackageConfigHelpers)

set(gpufs_package_dir "${CMAKE_INSTALL_LIBDIR}/cmake/gpufs")
get_target_property(gpufs_library_type gpufs TYPE)

install(DIRECTORY "${PROJECT_SOURCE_DIR}/include/gpufs" DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}" COMPONENT devel)
install(TARGETS gpufs EXPORT gpufs
  ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT devel
  LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT devel
  RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT devel)
install(EXPORT gpufs NAMESPACE gpufs:: FILE gpufsTargets.cmake DESTINATION "${gpufs_package_dir}" COMPONENT devel)

configure_package_config_file("${PROJECT_SOURCE_DIR}/cmake/gpufsConfig.cmake.in"
  "${PROJECT_BINARY_DIR}/gpufsConfig.cmake" INSTALL_DESTINATION "${gpufs_package_dir}"
  NO_SET_AND_CHECK_MACRO)
# Before version 1.0 a minor version may change the interface.
write_basic_package_version_file("${PROJECT_BINARY_DIR}/gpufsConfigVersion.cmake" COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/gpufsConfig.cmake" "${PROJECT_BINARY_DIR}/gpufsConfigVersion.cmake"
  "${PROJECT_SOURCE_DIR}/cmake/GpufsCudaWheel.cmake"
  DESTINATION "${gpufs_package_dir}" COMPONENT devel)
