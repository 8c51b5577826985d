# What `cmake --install` puts where: the program, the library with its header, the manual pages.
include(GNUInstallDirs)
install(TARGETS k3_program RUNTIME)
install(TARGETS k3 LIBRARY)
install(TARGETS k3 LIBRARY DESTINATION . COMPONENT vllm NAMELINK_SKIP EXCLUDE_FROM_ALL) # into the Python package
install(FILES ${CMAKE_SOURCE_DIR}/include/k3/k3.h ${CMAKE_SOURCE_DIR}/include/k3/status.def
    DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/k3)
foreach(section 1 3)
    install(DIRECTORY ${CMAKE_BINARY_DIR}/man/ DESTINATION ${CMAKE_INSTALL_MANDIR}/man${section} FILES_MATCHING PATTERN "*.${section}")
endforeach()

# yyjson that setup.sh unpacked is no package of the system: it is installed beside the library.
if(YYJSON_LIBRARY MATCHES "^${K3_DEPS_DIR}/")
    file(REAL_PATH ${YYJSON_LIBRARY} yyjson_file)
    install(FILES ${yyjson_file} DESTINATION ${CMAKE_INSTALL_LIBDIR}/k3 RENAME libyyjson.so.0)
    install(FILES ${yyjson_file} DESTINATION k3 RENAME libyyjson.so.0 COMPONENT vllm EXCLUDE_FROM_ALL)
    set_target_properties(k3_program k3 PROPERTIES INSTALL_RPATH
        "$ORIGIN/k3:$ORIGIN/../${CMAKE_INSTALL_LIBDIR}/k3")
endif()
