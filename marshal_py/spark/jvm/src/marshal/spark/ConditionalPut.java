package marshal.spark;

import java.io.IOException;
import java.nio.file.FileAlreadyExistsException;
import java.util.Arrays;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/** Creates an object only if there is none of its name: S3's If-None-Match, by Hadoop's S3A. */
final class ConditionalPut {
  private ConditionalPut() {}

  /**
   * Writes all of an object in one request. Unless `overwrite`, throws FileAlreadyExistsException
   * if there is another one of that name by then.
   */
  static void put(FileSystem store, Path path, byte[] content, boolean overwrite)
      throws IOException {
    // "Overwrite" leaves out S3A's look beforehand, which decides nothing.
    FSDataOutputStreamBuilder<?, ?> builder = store.createFile(path).overwrite(true);
    if (!overwrite) {
      // "Must": a file system that does not know of it refuses, and does not overwrite.
      builder = builder.must("fs.option.create.conditional.overwrite", true);
    }
    try {
      FSDataOutputStream out = builder.build();
      out.write(content);
      out.close();
    } catch (IOException error) {
      if (overwrite || !store.exists(path)) {
        throw error;
      }
      // A request that was repeated, since its answer was lost, finds what it has created itself.
      if (!Arrays.equals(content, read(store, path))) {
        FileAlreadyExistsException taken = new FileAlreadyExistsException(path.toString());
        taken.initCause(error);
        throw taken;
      }
    }
  }

  private static byte[] read(FileSystem store, Path path) throws IOException {
    byte[] found = new byte[Math.toIntExact(store.getFileStatus(path).getLen())];
    try (FSDataInputStream in = store.open(path)) {
      in.readFully(0, found);
    }
    return found;
  }
}
