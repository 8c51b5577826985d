# Debian packages (tools/setup.sh installs them). yyjson is not in Debian 12: setup.sh unpacks the
# Debian 13 packages under build/deps and leaves the system's sources alone.
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)

set(K3_DEPS_DIR ${CMAKE_SOURCE_DIR}/build/deps CACHE PATH "Where tools/setup.sh unpacked yyjson")
find_path(YYJSON_INCLUDE_DIR yyjson.h HINTS ${K3_DEPS_DIR}/usr/include)
find_library(YYJSON_LIBRARY yyjson HINTS ${K3_DEPS_DIR}/usr/lib/${CMAKE_LIBRARY_ARCHITECTURE})
if(NOT YYJSON_INCLUDE_DIR OR NOT YYJSON_LIBRARY)
    message(FATAL_ERROR "yyjson is missing: run tools/setup.sh (or install libyyjson-dev)")
endif()
add_library(yyjson SHARED IMPORTED)
set_target_properties(yyjson PROPERTIES
    IMPORTED_LOCATION ${YYJSON_LIBRARY}
    INTERFACE_INCLUDE_DIRECTORIES ${YYJSON_INCLUDE_DIR})

# Python for tools and black-box tests: the system's, because numpy is one of its packages.
find_program(K3_PYTHON NAMES python3 HINTS /usr/bin NO_CMAKE_ENVIRONMENT_PATH REQUIRED)
